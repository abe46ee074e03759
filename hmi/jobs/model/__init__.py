"""Jobs that make tenants' models."""
