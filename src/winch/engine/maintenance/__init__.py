"""Loops that keep the store in order. Any number may run anywhere at once; none is a leader."""
