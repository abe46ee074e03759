"""The arguments of the store commands: the data folder, and domains and versions by name.

The store's own errors name a Python call as the cure. The errors raised here name a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import plot_store
from hmi.cli.framework.session import CliSession
from hmi.core import DomainId
from hmi.errors import NotFound
from hmi.stores.plot.plots import current_version, plot_errors

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls
    from hmi.manager import Manager

_VERSION: Final = re.compile(r"v[0-9a-f]{32}")


@contextmanager
def opened(session: CliSession) -> Iterator[LocalCalls]:
    """Open the data folder. Raises InvalidInput, and what opening it raises."""
    with session.local() as local:
        yield local


def domain_of(manager: Manager, text: str) -> str:
    """Return a domain's ref; `text` may have dots or slashes. Raises InvalidInput, NotFound."""
    domain = str(DomainId.parse(text))
    if current_version(manager.plots, domain) is None:
        raise NotFound(f"there is no domain {domain!r}: 'hmi domain list' lists the domains", field="domain")
    return domain


def version_of(manager: Manager, text: str) -> str:
    """Check a domain, ROOT/BRANCH@TAG or a version's id, and return it in the store's form.

    A tag may contain dots.

    Raises InvalidInput, NotFound (also for a version that was collected).
    """
    if _VERSION.fullmatch(text):
        return _known_id(manager, text)
    name, at, tag = text.partition("@")
    domain = domain_of(manager, name)
    if not at:
        return domain
    with plot_errors():
        tags = manager.plots.tags(domain)
    if f"{domain}@{tag}" not in tags:
        known = ", ".join(tags) or "none"
        raise NotFound(f"{domain} has no tag {tag!r} (its tags: {known}): 'hmi store info' lists all tags")
    return f"{domain}@{tag}"


def _known_id(manager: Manager, version: str) -> str:
    with plot_errors():
        try:
            return manager.plots.version(version).id
        except plot_store.Collected:
            raise
        except plot_store.NotFound:
            raise NotFound(
                f"there is no version {version}: 'hmi domain show ROOT/BRANCH' lists a domain's versions"
            ) from None
