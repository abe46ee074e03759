"""Roots and the published models that they are made from."""
