"""Inference without HTTP: asks, their results, and what protocols share."""
