"""Tags of words and the entities that they mark."""
