"""Help for testing: the conformance suite for drivers (`winch.testing.conformance`)."""
