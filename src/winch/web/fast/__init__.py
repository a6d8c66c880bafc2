"""Fast paths of the server: each does what the plain path would, with less work."""
