"""Lazy imports: importing numba takes a tenth of a second, and most commands never need it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A proxy for the module `hmi_kernels.<name>`, which it imports when an attribute is first used.

    Attributes are cached, so later uses cost the same as those of a module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(f"hmi_kernels.{self._name}"), attribute)
        setattr(self, attribute, found)
        return found
