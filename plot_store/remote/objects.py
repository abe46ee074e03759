"""What push and pull need from object storage: objects by name. A URL names the place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from plot_store.ground.arguments import check_path
from plot_store.ground.errors import Invalid

_REQUESTS_AT_ONCE: Final = 4  # requests at a time; each may hold a segment in memory
T = TypeVar("T")
R = TypeVar("R")
CURE = "check the address, its credentials, and the connection, then try again"


@dataclass(frozen=True)
class Listed:
    """An object in a listing."""

    name: str
    bytes: int
    modified: float  # Unix seconds, by the clock of the place


class Objects(Protocol):
    """A place for objects. An object appears whole or not at all. Thread-safe.

    Names are parts joined by "/". Every method raises StoreIO if the place cannot be reached or refuses.
    """

    place: str
    """The place, for messages. It has no credentials."""

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return a small object and its tag, which changes with the content; None if there is none."""

    def read(self, name: str, start: int, size: int) -> bytes | None:
        """Return `size` bytes from `start` on, or fewer at the object's end; None if there is no object."""

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if there is none."""

    def put(self, name: str, data: memoryview) -> None:
        """Store an object, replacing one of this name."""

    def swap(self, name: str, data: bytes, tag: str | None) -> bool:
        """Store a small object if the present one has this tag. tag None: store it if there is no object.

        Otherwise returns False and changes nothing. After an error the outcome is unknown.
        """

    def listed(self, below: str) -> Iterator[Listed]:
        """Yield all objects whose names begin with `below` and "/"."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. Those that are gone already are ignored."""


def threaded(body: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results for all items, in order, computed by some threads at a time."""
    todo = list(items)
    if len(todo) < 2:
        yield from map(body, todo)
        return
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        running = [pool.submit(body, item) for item in todo]
        try:
            for one in running:
                yield one.result()
        finally:
            for one in running:
                one.cancel()


def open_objects(url: str | os.PathLike[str]) -> Objects:
    """Open a place: a folder, "file://…", "memory://…" or "s3://bucket/prefix". Nothing is contacted yet.

    Raises Invalid for another kind of place, for a URL with credentials or a query, and if the package of
    the protocol is not installed.
    """
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(text, str) or not text:
        raise Invalid("the place of a remote is not a folder or a URL: pass one, such as s3://bucket/plots")
    if "://" not in text:
        return _folder(check_path("url", text))
    parts = urlsplit(text)
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise Invalid(
            f"a URL {parts.scheme}://… with a user, a password, '?' or '#' is refused: give credentials in "
            "the environment or in the files that the protocol's library reads"
        )
    if parts.scheme == "file":
        return _folder(check_path("url", unquote(parts.path)))
    if parts.scheme in ("memory", "s3"):
        return _by_fsspec(parts.scheme, f"{parts.netloc}{parts.path}".strip("/"))
    raise Invalid(
        f"places of the kind {parts.scheme}:// are refused, since no conditional put is known for them, and "
        "without it two writers could lose each other's versions: use a folder, or s3://"
    )


def _folder(path: Path) -> Objects:
    from plot_store.remote.folder import Folder

    return Folder(path.expanduser().absolute())


def _by_fsspec(scheme: str, path: str) -> Objects:
    try:
        if scheme == "memory":
            from plot_store.remote.memory import Memory

            return Memory(path)
        from plot_store.remote.s3 import S3

        return S3(path)
    except ImportError as error:
        raise Invalid(
            f"{scheme}:// needs the package {error.name}: pip install 'hmi-plot-store[remote]'"
        ) from error
