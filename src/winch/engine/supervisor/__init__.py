"""The processes around workers."""
