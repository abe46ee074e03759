"""Look-ups, and everything else that only reads versions."""
