"""Redis and Valkey: one Lua script per verb, so that each verb is one atomic step of the server."""
