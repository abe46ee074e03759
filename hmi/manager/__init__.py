"""The lifecycle of roots, domains, tenants and models: which changes are allowed when, and which
job makes them."""

from __future__ import annotations

from hmi.manager.domains import DomainInfo, DomainVersionInfo
from hmi.manager.manager import Manager

__all__ = ["DomainInfo", "DomainVersionInfo", "Manager"]
