"""The target of a command: a data folder in this process, or a running server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.output import notes
from hmi.config import Settings
from hmi.config.sources import Configuration, read
from hmi.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls


class Calls(Protocol):
    """The calls of docs/http.md, made over HTTP or in this process."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        files: Mapping[str, Path] | None = None,
        query: Mapping[str, str] | None = None,
        once: str | None = None,
    ) -> Any:
        """Return the decoded JSON answer. `once` is an Idempotency-Key. Raises HmiError."""


def segment(name: str) -> str:
    """Quote a name or an id as one segment of a path, even if it holds a slash."""
    return quote(name, safe="")


@dataclass
class CliSession:
    """The values of the common options."""

    data: Path | None = None
    config: Path | None = None
    """The TOML file of settings that --config names."""
    url: str | None = None
    key: str | None = None
    ca: Path | None = None
    """The PEM file that --ca names."""
    overrides: dict[str, Any] = field(default_factory=dict)
    url_of_environment: bool = False
    """Whether `url` comes from HMI_URL and not from an option."""

    @property
    def remote(self) -> bool:
        return self.url is not None

    def settings(self) -> Settings:
        return self.configuration().settings

    def configuration(self) -> Configuration:
        """Return the settings with the source of each. Raises InvalidInput."""
        return read(None, self.config, self.flags())

    def configured(self, file: Path | None) -> Settings:
        """Return the settings with `file` in place of the one that the options name. Raises InvalidInput."""
        return read(None, file or self.config, self.flags()).settings

    def flags(self) -> dict[str, Any]:
        """Return the settings that options give."""
        return {"data": self.data, **self.overrides}

    @contextmanager
    def calls(self, *, creates: bool = False, server: bool = False) -> Iterator[Calls]:
        """Open the server or the data folder that the options name. `creates`: see `local`.

        server: if they name a folder on which a server runs, open that server, which knows more.
        """
        url = self.url or (self._live_url() if server else None)
        if url is not None:
            yield self.client(url, patience_s=5.0)
            return
        with self.local(creates=creates) as local:
            yield local

    def client(self, url: str, *, patience_s: float = 0.0, timeout_s: float = 60.0) -> HttpClient:
        """Return a client of the server at `url`, with the key and certificates that options name."""
        own = os.environ.get("HMI_CLIENT_CERT")
        certificate = Path(own) if own else None
        return HttpClient(url, self.key, self.ca, certificate, timeout_s, patience_s)

    @contextmanager
    def local(self, *, creates: bool = False) -> Iterator[LocalCalls]:
        """Open the data folder in this process.

        Only a command that `creates` may create the folder. For any other a missing folder is an error, since
        it was probably mistyped or not mounted. Raises InvalidInput, also if a server was named, and what
        opening the folder raises.
        """
        self.not_remote("this works on the data folder itself: leave --url out and give --data")
        settings = self.settings()
        self.require_data_folder(creates=creates)
        from hmi.api.process.local import LocalCalls
        from hmi.manager.maintenance import probe_plots

        probe_plots(settings.data)
        local = LocalCalls(settings)
        try:
            yield local
        finally:
            local.close()

    def not_remote(self, message: str) -> None:
        """Raises InvalidInput with `message` if a server was named."""
        if self.remote:
            cure = " (HMI_URL is set: unset it, or give --data)" if self.url_of_environment else ""
            raise InvalidInput(message + cure)

    def require_data_folder(self, *, creates: bool) -> None:
        """If the data folder is missing, announce that it will be created, or raise InvalidInput."""
        from hmi.stores.layout import Layout

        data = self.settings().data
        if Layout(data).registry.is_dir():
            return
        if not creates:
            raise InvalidInput(
                f"there is no data folder at {data}: check --data, HMI_DATA and the working directory; "
                "'hmi root import' creates a new one"
            )
        notes.print(f"creating the data folder {data}", markup=False, soft_wrap=True)

    def _live_url(self) -> str | None:
        from hmi.api.process.lock import live_server

        found = live_server(self.settings().data)
        return None if found is None else found.url or None

    def may_start_jobs(self) -> None:
        """Raise Conflict if a server runs on the data folder, since it runs the jobs there."""
        if self.remote:
            return
        from hmi.api.process.lock import live_server

        data = self.settings().data
        server = live_server(data)
        if server is not None:
            where = server.url or "URL"
            raise Conflict(f"a server (process {server.pid}) runs on {data}: add --url {where}")
