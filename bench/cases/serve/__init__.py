"""`bench serve`: the serving path with up to 10,000 tenants on one machine."""
