"""Many servers as one: what they can answer, and what they cost."""
