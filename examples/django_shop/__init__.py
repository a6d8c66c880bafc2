"""A shop in Django: orders in one transaction with their jobs. See README.md."""
