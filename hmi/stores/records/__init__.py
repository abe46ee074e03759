"""Records in the registry."""
