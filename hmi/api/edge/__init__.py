"""Connections: which are accepted, how long they may last, and their certificate."""
