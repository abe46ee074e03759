"""The run of a batch: look-up, layers, heads, answers."""
