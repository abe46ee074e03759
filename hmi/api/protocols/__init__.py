"""The wire protocols of inference, one folder each. `base` says what a protocol is made of."""
