"""Workers that an app starts: in this process, or under a supervisor."""
