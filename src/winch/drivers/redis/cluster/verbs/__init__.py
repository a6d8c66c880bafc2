"""The verbs of one server, each carried out in the parts of the store that it concerns."""
