"""The native protocol of inference."""
