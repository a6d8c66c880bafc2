"""`winch bench`."""
