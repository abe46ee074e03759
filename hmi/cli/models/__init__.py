"""Commands about tenants' models, their rows and answers."""
