"""What a command works on: a data folder in this process, or a running server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hmi.cli.client import Client
from hmi.config import Settings
from hmi.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from hmi.api.local import LocalCalls


class Calls(Protocol):
    """The native calls of docs/http.md, by HTTP or in process."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        files: Mapping[str, Path] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON answer; raises HmiError."""


@dataclass
class Session:
    """The options that every command takes."""

    data: Path | None = None
    url: str | None = None
    key: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def remote(self) -> bool:
        return self.url is not None

    def settings(self) -> Settings:
        return Settings.from_env(None, data=self.data, **self.overrides)

    @contextmanager
    def calls(self) -> Iterator[Calls]:
        """Open what the options name."""
        if self.url is not None:
            yield Client(self.url, self.key, patience_s=5.0)
            return
        with self.local() as local:
            yield local

    @contextmanager
    def local(self) -> Iterator[LocalCalls]:
        """The data folder itself; refused where only a server was named."""
        if self.url is not None:
            raise InvalidInput("this works on the data folder itself: leave --url out and give --data")
        from hmi.api.local import LocalCalls
        from hmi.manager.store_care import probe_plots

        settings = self.settings()
        probe_plots(settings.data)
        local = LocalCalls(settings)
        try:
            yield local
        finally:
            local.close()

    def may_start_jobs(self) -> None:
        """Refuse to run a job beside a live server, whose runner it would race."""
        if self.remote:
            return
        from hmi.api.presence import live_server

        data = self.settings().data
        server = live_server(data)
        if server is not None:
            where = server.url or "URL"
            raise Conflict(f"a server (process {server.pid}) works on {data}: add --url {where}")
