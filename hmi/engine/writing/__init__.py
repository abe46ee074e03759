"""Answers of language models: from a prompt to its text, which comes in pieces."""
