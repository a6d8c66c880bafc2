"""`winch serve`: the process, its connections, and the upkeep it does for the store."""
