"""The worker: it claims, runs and finishes jobs."""
