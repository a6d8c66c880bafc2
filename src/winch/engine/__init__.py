"""What runs: the client that enqueues, the worker that claims, executes and finishes."""
