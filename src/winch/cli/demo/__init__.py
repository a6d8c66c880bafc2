"""`winch demo`."""
