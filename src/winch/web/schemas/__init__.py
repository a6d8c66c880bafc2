"""What goes over HTTP: the types that are read, written and described in the OpenAPI document."""
