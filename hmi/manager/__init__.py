"""The lifecycle of roots, domains, tenants and models: what may be done when, and which job does it."""

from __future__ import annotations

from hmi.manager.domains import DomainVersionView, DomainView
from hmi.manager.manager import Manager

__all__ = ["DomainVersionView", "DomainView", "Manager"]
