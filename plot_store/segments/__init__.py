"""Segment files: their format, writing them, and mapping them."""
