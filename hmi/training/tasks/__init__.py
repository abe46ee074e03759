"""Golds, scores and what a head learns beside its weights."""
