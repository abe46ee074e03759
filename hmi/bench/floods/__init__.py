"""`hmi bench floods`: how much one tenant, or a stranger, can slow another tenant's answers."""
