"""A small-scope, exhaustive search of the protocol; `python -m tests.model` prints what it found."""
