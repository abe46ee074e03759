"""The wire protocols that inference speaks, one folder each."""
