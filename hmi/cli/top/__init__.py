"""`hmi top`."""
