"""Measurements: medians of paired, interleaved runs, as a table and as JSON."""
