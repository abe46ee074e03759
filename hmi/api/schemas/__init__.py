"""The bodies, queries and answers of the calls."""
