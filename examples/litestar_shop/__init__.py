"""A shop in Litestar: orders in one transaction with their jobs. See README.md."""
