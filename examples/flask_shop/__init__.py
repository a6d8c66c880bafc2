"""A shop in Flask: orders in one transaction with their jobs. See README.md."""
