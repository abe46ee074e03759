"""HMI: a language model of its own for each of thousands of tenants, on one machine."""

__version__ = "0.1.0"
