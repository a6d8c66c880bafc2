"""The producer's side: enqueue, look, act."""
