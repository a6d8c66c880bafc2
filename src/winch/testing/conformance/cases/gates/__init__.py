"""Limits, rates, fairness and breakers."""
