"""Builds, appends and their publication."""
