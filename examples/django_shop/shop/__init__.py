"""The shop itself: orders, receipts and the tasks that write them."""
