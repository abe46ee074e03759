"""`python -m hmi` runs the command `hmi`."""

from __future__ import annotations

from hmi.cli import main

main()
