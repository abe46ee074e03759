"""`bench floods`: how much one tenant, or a client without a key, can slow another tenant's answers."""
