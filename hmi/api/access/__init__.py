"""Who calls, what the caller may reach and how often, and the log of it."""
