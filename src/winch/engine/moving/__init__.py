"""A move from one store to another, while producers and workers run: docs/protocol/move.md."""
