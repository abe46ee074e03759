"""Runs jobs of any kind: their processes, folders, progress, cancellation, and the clean-up after crashes."""
