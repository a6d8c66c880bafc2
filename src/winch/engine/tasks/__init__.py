"""Tasks: names, options, arguments, injection."""
