"""A shop in FastAPI: orders in one transaction with their jobs. See README.md."""
