"""The seam: queue verbs as values, their parameters, and what a driver must provide."""
