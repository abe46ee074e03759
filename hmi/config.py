"""Settings of one process. `Settings.from_env` is the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hmi.errors import InvalidInput
from hmi.sizes import FORMS, parse_bytes

MIB = 1 << 20
PREFIX = "HMI_"
_LEAST: dict[str, int] = {
    "port": 0, "job_workers": 0, "pool_bytes": 0, "plot_max_bytes": 0, "plot_min_free_bytes": 0, "compact_segments": 0,
    "compact_small_bytes": 1 << 14, "max_connections": 0, "max_address_connections": 0,
    "max_uploads": 2, "upload_bytes": 0,
}  # fmt: skip
_MOST: dict[str, int] = {"port": 65535, "job_workers": 64, "streams": 1024}


@dataclass(frozen=True)
class Settings:
    """How a server or a command runs. Sizes in bytes. Raises InvalidInput naming the impossible value.

    The text under each field is what `hmi settings` and docs/settings.md say of it: write one for a new field, and
    `python -m hmi settings --markdown --out docs/settings.md`.
    """

    data: Path = Path("hmi-data")
    """The data folder. All that is kept lies below it."""
    host: str = "127.0.0.1"
    """The address to listen on. Any but this machine's own needs an administrator's key first."""
    port: int = 8080
    """The port to listen on; 0 = any that is free."""
    job_workers: int = 1
    """Jobs at once; 0 starts none (they wait for another process)."""
    streams: int = 1
    """Compute threads of the engine: batches that compute at once."""
    batch_ms: int = 20
    """A batch is cut to take about so long, and a tenant's part of it to a quarter while another that sent something in
    the last second may come back: what a text may wait for others'. Longer ones gain some throughput. One window of a
    text that takes longer runs alone."""
    max_batch_tokens: int = 2048
    """Of the texts that are computed together. More is a little quicker, and a longer turn for those who wait."""
    queue_tokens: int = 65536
    """More tokens waiting than this: new requests get `unavailable`."""
    pool_bytes: int = 256 * MIB
    """Memory for the modules of tenants that were asked lately; others are read from the disk when they are asked."""
    max_text_bytes: int = 100_000
    """Of one text of a request, in UTF-8."""
    max_inputs: int = 1024
    """Texts in one request."""
    max_body_bytes: int = 8 * MIB
    """Of the JSON of one call to infer, after it is expanded."""
    body_bytes: int = 128 * MIB
    """Memory for request bodies in flight; a tenant may hold as much of it as is then left for others."""
    body_idle_s: int = 30
    """A body that pauses for longer is refused."""
    head_s: int = 20
    """A new connection that has not sent the whole head of a request by then is closed."""
    idle_s: int = 75
    """A kept connection without a request, and one whose client does not read its answer, is closed after this."""
    max_connections: int = 0
    """Connections at once; 0 = half of the files that the process may open, at most 4096."""
    max_address_connections: int = 0
    """Of these from one address other than this machine's own; 0 = half of them."""
    max_upload_bytes: int = 256 * MIB
    """Of one uploaded file, after it is expanded."""
    max_uploads: int = 32
    """Requests at once that bring files; a tenant may have as many as are then left for others."""
    upload_bytes: int = 0
    """Room on the disk for the files of requests under way, as sent and expanded; a tenant may hold as much of it as is
    then left for others. 0 = 16 times `max_upload_bytes`."""
    plot_max_bytes: int = 0
    """The PLOT store may not grow over this; 0 = no limit."""
    plot_min_free_bytes: int = 256 * MIB
    """Room on the disk that the PLOT store leaves to others."""
    plot_keep_versions: int = 8
    """Of each domain, its newest versions that collection leaves."""
    compact_segments: int = 8
    """The server merges a domain's small segments once one order of n-grams has more of them; 0 = never."""
    compact_small_bytes: int = 32 * MIB
    """A segment below this is small."""

    def __post_init__(self) -> None:
        # A job runs in another process, maybe after a restart elsewhere: the folder must not depend on where we stand.
        object.__setattr__(self, "data", Path(self.data).expanduser().absolute())
        if not self.host:
            raise InvalidInput("host is empty: give an address such as 127.0.0.1", field="host")
        for field in fields(self):
            if isinstance(field.default, int):
                _check_number(field.name, getattr(self, field.name))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from HMI_DATA, HMI_PORT, …; `overrides` that are not None win. Raises InvalidInput."""
        environ = os.environ if environ is None else environ
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environ.get(PREFIX + field.name.upper())
            if overrides.get(field.name) is not None:
                given[field.name] = overrides.pop(field.name)
            elif text:
                given[field.name] = _parsed(field.name, field.default, text)
        unknown = sorted(name for name, value in overrides.items() if value is not None)
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise InvalidInput(f"unknown setting {unknown[0]!r}: use one of {known}", field=unknown[0])
        return cls(**given)


def _parsed(name: str, default: Any, text: str) -> Any:
    if not isinstance(default, int):
        return text
    size = name.endswith("_bytes")
    try:
        return parse_bytes(text) if size else int(text)
    except ValueError as error:
        what = f"a size: give {FORMS}" if size else "a whole number"
        raise InvalidInput(f"{PREFIX}{name.upper()}={text!r} is not {what}", field=name) from error


def bounds(name: str) -> tuple[int, int]:
    """The least and the most that a setting may be."""
    return _LEAST.get(name, 1), _MOST.get(name, 1 << 50)


def _check_number(name: str, value: Any) -> None:
    least, most = bounds(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} = {value!r} is impossible: give a whole number from {least} to {most}", field=name)
