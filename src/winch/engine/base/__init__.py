"""What every other part of the engine uses."""
