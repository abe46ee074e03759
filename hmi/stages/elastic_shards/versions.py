"""The versions that each shard is stored in."""

from __future__ import annotations

BITS = (2, 3, 4, 5, 6)
"""The bitwidths of quantised versions."""
FULL = 32
"""The bitwidth of the exact version."""
VERSIONS = (*BITS, FULL)
