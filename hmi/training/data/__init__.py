"""Readers of users' uploads: labelled rows, unlabelled texts, corpora. Nothing here imports torch."""
