"""The store spread over a cluster."""
