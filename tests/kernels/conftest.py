from __future__ import annotations

from cuda_twin import device, library

__all__ = ["device", "library"]
