"""Refs and versions in object storage: push, pull and the collection of what no ref needs."""
