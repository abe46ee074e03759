"""The next tokens of many sequences, each with its tenant's own change, in one step."""
