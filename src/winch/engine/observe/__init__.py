"""Numbers, probes, alerts."""
