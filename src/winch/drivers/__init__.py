"""The stores. Each driver implements winch.storage.protocol.Driver and knows no other driver."""
