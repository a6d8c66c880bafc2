"""Durable steps, waits, compensation, transactions."""
