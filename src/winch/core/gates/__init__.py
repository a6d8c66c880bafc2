"""Gates: what a job must pass before it may run."""
