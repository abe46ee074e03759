"""HMI: serves thousands of tenants on one machine, each with its own language model."""

__version__ = "0.1.0"
