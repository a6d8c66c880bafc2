"""A small shop whose books balance whatever is killed: orders, payments, receipts, stock, pictures."""
