"""The settings of a client, and what it reads from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import urlsplit

from hmi.client.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:8080"
Compression = Literal["zstd", "gzip"] | None


class ClientSettings(TypedDict, total=False):
    """The settings of `Config` besides the address and what goes with it."""

    timeout_s: float
    upload_timeout_s: float
    writing_timeout_s: float
    attempts: int
    concurrency: int
    batch: int
    compress: Compression
    reconnect_s: float


class Address(TypedDict, total=False):
    url: str
    key: str
    ca: str
    certificate: str


@dataclass(frozen=True)
class Config:
    """The settings of a client. Raises InvalidInput that names a wrong one."""

    url: str = DEFAULT_URL
    """The server's address. A path is allowed, for servers behind a proxy."""
    key: str | None = None
    ca: str | None = None
    """A file with the certificates to trust, for https with a certificate of one's own."""
    certificate: str | None = None
    """A PEM file with a certificate of the client's own and its key, for servers that ask for one."""
    timeout_s: float = 60.0
    """The longest time of a call, with all its repetitions and the waits between them."""
    upload_timeout_s: float = 1800.0
    """The same for calls that send files."""
    writing_timeout_s: float = 600.0
    """The same for a text that a model writes; of a stream, the longest silence. A server that has no
    piece yet sends a comment every 15 s."""
    attempts: int = 8
    """The most times that a call is sent. With 1 it is never sent again."""
    concurrency: int = 4
    """Batches of one `infer` that are under way at a time."""
    batch: int = 256
    """The most inputs of one call that the client makes of a long list."""
    compress: Compression = "zstd"
    """The compression of files and rows that are sent, or None to send them as they are."""
    reconnect_s: float = 600.0
    """The time for which `Job.wait` tries to reach a server that does not answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked_url(self.url).rstrip("/"))
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise InvalidInput("key: it holds characters that cannot be in a key; copy it again")
        for name, file in (("ca", self.ca), ("certificate", self.certificate)):
            if file is not None and not Path(file).is_file():
                raise InvalidInput(f"{name}: there is no file {file}; give one in the format PEM")
        for name in (
            "timeout_s",
            "upload_timeout_s",
            "writing_timeout_s",
            "attempts",
            "concurrency",
            "batch",
        ):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} = {getattr(self, name)!r}: give a number above 0")

    @property
    def secure(self) -> bool:
        return self.url.lower().startswith("https:")

    @property
    def on_loopback(self) -> bool:
        """Whether the server's address is this machine's own."""
        return _is_loopback(urlsplit(self.url).hostname)


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False


def from_environment(
    url: str | None,
    key: str | None,
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
) -> Address:
    """Return what is given, else what HMI_URL, HMI_KEY, HMI_CA and HMI_CLIENT_CERT say."""
    found: Address = {}
    if at := url or os.environ.get("HMI_URL"):
        found["url"] = at
    if secret := key or os.environ.get("HMI_KEY"):
        found["key"] = secret
    if trusted := ca or os.environ.get("HMI_CA"):
        found["ca"] = os.fspath(trusted)
    if own := certificate or os.environ.get("HMI_CLIENT_CERT"):
        found["certificate"] = os.fspath(own)
    return found


def checked_url(url: str) -> str:
    """Return `url`. Raises InvalidInput unless it is an http or https address without query or key."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        sound = parts.scheme in ("http", "https") and bool(host) and "@" not in parts.netloc
        sound = sound and not (parts.query or parts.fragment)
        (host or "").encode("idna")
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise InvalidInput(f"url {url!r} is no address: give one like http://host:8080")
    return url
