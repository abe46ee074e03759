"""Answers made from the registry's records and the engine's state."""
