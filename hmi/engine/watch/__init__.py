"""What keeps the engine alive, and what it counts."""
