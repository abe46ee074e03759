"""Audits of texts that have their answers, and whose batch failed before they could be compared.

The fault may be another tenant's in the same batch, and says nothing of these texts. So the engine runs them
again, apart from other models, and their audits go on there. One that fails again is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Owed(Generic[T]):
    """Such audits, by the nonce of their text. Thread-safe, since each method does one thing to a dict."""

    def __init__(self, lost: Callable[[T], None]) -> None:
        """lost: takes note of an audit that will not be compared."""
        self._lost = lost
        self._audits: dict[str, T] = {}

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._audits

    def put(self, nonce: str, audit: T) -> None:
        self._audits[nonce] = audit

    def take(self, nonce: str) -> T | None:
        """Return the audit of a text that runs again, which goes on; None if it has none."""
        return self._audits.pop(nonce, None)

    def give_up(self, nonces: Iterable[str]) -> None:
        """End the audits of these texts, which do not run again."""
        for nonce in nonces:
            if (audit := self.take(nonce)) is not None:
                self._lost(audit)
