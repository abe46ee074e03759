"""The server process: its start, its parts, its shutdown."""
