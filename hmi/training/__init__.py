"""Training of roots (distillation), domains (further pretraining) and tenants' models. The server
does not answer with anything in here."""
