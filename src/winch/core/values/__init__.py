"""Small pure helpers: times, sizes, ids, text."""
