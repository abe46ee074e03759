"""The benchmark of the stages early exits and cascades."""
