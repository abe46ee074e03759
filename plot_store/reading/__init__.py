"""Look-ups and whatever else only reads versions."""
