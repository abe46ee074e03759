"""The shapes of a text in the engine, without torch."""
