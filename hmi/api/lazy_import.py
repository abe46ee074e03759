"""aiohttp, imported at the first use of a name: commands use parts of this package without a server."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module that is imported when one of its names is first looked up."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


aiohttp = LazyModule("aiohttp")
http = LazyModule("aiohttp.http")
web = LazyModule("aiohttp.web")
