"""Backups of a whole data folder: made while a server runs, checked, and restored."""
