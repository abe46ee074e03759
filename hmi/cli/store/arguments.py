"""What the store commands are given: the data folder, domains and versions by name, files, numbers.

A store's own errors tell what to call in Python; what is checked here tells what to type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import plot_store
from hmi.cli.session import Session
from hmi.core import DomainId
from hmi.errors import InvalidInput, NotFound
from hmi.stores.layout import Layout
from hmi.stores.plots import plot_errors

if TYPE_CHECKING:
    from hmi.api.local import LocalCalls
    from hmi.manager import Manager

_VERSION: Final = re.compile(r"v[0-9a-f]{32}")
_FACTORS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Number(click.FloatRange):
    """Numbers from `least` to `most`; "nan", which is on neither side of a bound, is none of them."""

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is no number: give one from {self.min:g} to {self.max:g}", param, ctx)
        return found


def as_rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """An option's callback: "50M" → 52428800.0 bytes a second. Raises click.BadParameter."""
    if text is None:
        return None
    factor = _FACTORS.get(text[-1:].upper(), 1)
    try:
        found = float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        found = math.nan
    if not 1 <= found < 1 << 50:
        raise click.BadParameter(f"{text!r} is no rate: give bytes a second, such as 50M")
    return found


@contextmanager
def opened(session: Session) -> Iterator[LocalCalls]:
    """The data folder, which must be there: one that is mistyped or not mounted is no empty one, and not sound.

    Raises InvalidInput, and what opening it raises.
    """
    must_exist(session)
    with session.local() as local:
        yield local


def must_exist(session: Session) -> None:
    """Raises InvalidInput where a data folder is meant and there is none."""
    if session.remote:
        return
    data = session.settings().data
    if not Layout(data).registry.is_dir():
        raise InvalidInput(f"there is no data folder at {data}: check --data, HMI_DATA and the place where you stand")


def domain_of(manager: Manager, text: str) -> str:
    """The ref of a domain written with dots or slashes. Raises InvalidInput, NotFound."""
    domain = str(DomainId.parse(text))
    with plot_errors():
        found = domain in manager.plots.refs()
    if not found:
        raise NotFound(f"there is no domain {domain!r}: 'hmi domain list' shows which there are", field="domain")
    return domain


def version_of(manager: Manager, text: str) -> str:
    """A domain, ROOT/BRANCH@TAG or a version's id as the store takes it; a tag may hold dots of its own.

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
        raise NotFound(f"{domain} has no tag {tag!r} (its tags: {known}): 'hmi store info' shows those of every domain")
    return f"{domain}@{tag}"


def _known_id(manager: Manager, version: str) -> str:
    with plot_errors():
        try:
            return manager.plots.version(version).id
        except plot_store.Collected:
            raise
        except plot_store.NotFound:
            raise NotFound(f"there is no version {version}: 'hmi domain show ROOT/BRANCH' lists a domain's") from None


def check_target(file: Path) -> None:
    """Raises InvalidInput unless `file` is, or may become, a plain file in a folder that is there."""
    if not file.parent.is_dir():
        raise InvalidInput(f"there is no folder {file.parent}: make it first, or name another file", field="archive")
    if file.exists() and not file.is_file():
        raise InvalidInput(f"{file} is not a plain file, and would be replaced: name another", field="archive")
