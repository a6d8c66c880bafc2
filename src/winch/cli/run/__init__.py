"""Commands that start processes."""
