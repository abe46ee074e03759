"""`hmi bench floods`: what one tenant, or a stranger, can do to another tenant's answers."""
