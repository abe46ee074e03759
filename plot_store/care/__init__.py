"""Verification, garbage collection, compaction, export and import."""
