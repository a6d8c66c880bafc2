"""The gateway for clients of Faktory: they enqueue and work on a Winch store over Faktory's protocol."""
