"""Webhooks: endpoints as data, events on the outbox, deliveries and their log."""
