"""The cases of the conformance suite."""
