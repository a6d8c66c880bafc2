"""Cases about the store as a whole."""
