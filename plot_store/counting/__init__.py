"""Counting the n-grams of texts. Uses nothing of the store but its ground."""
