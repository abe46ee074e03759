"""Importing modules at their first use: importing numba takes a tenth of a second, and most commands never
need it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands in for the module `hmi_kernels.<name>`. An attribute that was asked for once is kept, and then
    costs what a module's own does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(f"hmi_kernels.{self._name}"), attribute)
        setattr(self, attribute, found)
        return found
