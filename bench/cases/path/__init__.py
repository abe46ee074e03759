"""`bench path`: the time saved by looking the lower layers up, on the default root with one thread."""
