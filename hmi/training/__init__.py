"""Training: distillation of roots, further pretraining of domains, tenants' modules and heads.
Nothing here serves."""
