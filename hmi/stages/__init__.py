"""Execution stages (elastic shards, early exits, token adaptation, cascades) will plug in here; none exists yet."""
