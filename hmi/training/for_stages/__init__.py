"""Ramps and prompts: what stages need of a model."""
