"""A call, from its route to its reply."""
