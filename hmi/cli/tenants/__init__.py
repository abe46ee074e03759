"""Commands about tenants and keys, and onboarding of many."""
