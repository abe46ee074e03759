"""`bench fleet`: the start of a server with thousands of tenants."""
