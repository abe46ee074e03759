"""The wire protocols of inference, one folder each. `base` defines what a protocol consists of."""
