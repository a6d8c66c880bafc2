"""The queues of a worker: in which order, how many jobs of each, and those that appear while it runs."""
