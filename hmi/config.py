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
    "port": 0,
    "job_workers": 0,
    "pool_bytes": 0,
    "plot_max_bytes": 0,
    "plot_min_free_bytes": 0,
    "compact_segments": 0,
    "compact_small_bytes": 1 << 14,
    "max_connections": 0,
    "max_address_connections": 0,
    "max_uploads": 2,
    "upload_bytes": 0,
}
_MOST: dict[str, int] = {"port": 65535, "job_workers": 64, "streams": 1024}


@dataclass(frozen=True)
class Settings:
    """How a server or a command runs. Sizes in bytes. Raises InvalidInput naming the impossible value.

    `hmi settings` and docs/settings.md show the text under each field. After a change run
    `python -m hmi settings --markdown --out docs/settings.md`.
    """

    data: Path = Path("hmi-data")
    """The data folder. The server stores everything below it."""
    host: str = "127.0.0.1"
    """The address to listen on. One other than loopback needs an administrator's key first."""
    port: int = 8080
    """The port to listen on; 0 = any free port."""
    job_workers: int = 1
    """Jobs that run at once; 0 = start none, and leave them to another process."""
    streams: int = 1
    """Compute threads of the engine: this many batches run at once."""
    batch_ms: int = 20
    """Target time of one batch, which is how long a text may wait for others'. A tenant gets a quarter of it
    if another tenant sent a request in the last second. A longer batch gains some throughput. A window of a
    text that alone takes longer runs alone."""
    max_batch_tokens: int = 2048
    """Tokens in one batch. More is slightly faster in all, and makes others wait longer."""
    queue_tokens: int = 65536
    """If more tokens than this are waiting, new requests get `unavailable`."""
    pool_bytes: int = 256 * MIB
    """Memory for the modules of recently used models; the others are read from the disk when needed."""
    max_text_bytes: int = 100_000
    """Size of one text of a request, in UTF-8."""
    max_inputs: int = 1024
    """Texts in one request."""
    # max_inputs texts of the most tokens that a model reads at once fit: 1024 · 512 tokens · 8 bytes. Words
    # and white space of English are 5 bytes a token, Chinese 3.
    max_body_bytes: int = 4 * MIB
    """Size of the JSON body of one call to infer, after decompression. The default takes `max_inputs` texts
    of 512 tokens."""
    body_bytes: int = 128 * MIB
    """Memory for request bodies in flight; a tenant may hold as much of it as it leaves free for others."""
    body_idle_s: int = 30
    """A body that pauses for longer than this is refused."""
    head_s: int = 20
    """A new connection is closed if it has not sent the whole head of a request after this."""
    idle_s: int = 75
    """A connection is closed after this time without a request, or with an answer that the client does not
    read."""
    max_connections: int = 0
    """Open connections at once; 0 = half of the files that the process may open, at most 4096."""
    max_address_connections: int = 0
    """Connections at once from one address other than this machine's own; 0 = half of
    `HMI_MAX_CONNECTIONS`."""
    max_upload_bytes: int = 256 * MIB
    """Size of one uploaded file, after decompression."""
    max_uploads: int = 32
    """Requests with files that are under way at once; a tenant may have as many as it leaves free for
    others."""
    upload_bytes: int = 0
    """Disk space for the files of requests under way, as sent and expanded; a tenant may hold as much of it
    as it leaves free for others. 0 = 16 times `max_upload_bytes`."""
    plot_max_bytes: int = 0
    """Largest size of the PLOT store; 0 = no limit."""
    plot_min_free_bytes: int = 256 * MIB
    """Free space on the disk that the PLOT store leaves to others."""
    plot_keep_versions: int = 8
    """Newest versions of each domain that garbage collection keeps."""
    compact_segments: int = 8
    """The server merges a domain's small segments when one order of n-grams has more than this; 0 = never."""
    compact_small_bytes: int = 32 * MIB
    """A segment below this size counts as small."""

    def __post_init__(self) -> None:
        # A job runs in another process, maybe after a restart elsewhere: the folder must not depend on where
        # we stand.
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
        raise InvalidInput(
            f"{name} = {value!r} is impossible: give a whole number from {least} to {most}", field=name
        )
