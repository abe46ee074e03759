"""What a command works on: a data folder in this process, or a running server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from hmi.cli.client import Client
from hmi.cli.output import notes
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


def segment(name: str) -> str:
    """A name or an id as a part of a path, so that one with a slash names no other call."""
    return quote(name, safe="")


@dataclass
class Session:
    """The options that every command takes."""

    data: Path | None = None
    url: str | None = None
    key: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    url_of_environment: bool = False
    """Whether HMI_URL named the server, and no option."""

    @property
    def remote(self) -> bool:
        return self.url is not None

    def settings(self) -> Settings:
        return Settings.from_env(None, data=self.data, **self.overrides)

    @contextmanager
    def calls(self, *, creates: bool = False) -> Iterator[Calls]:
        """Open what the options name; see `local` for what `creates` means."""
        if self.url is not None:
            yield Client(self.url, self.key, patience_s=5.0)
            return
        with self.local(creates=creates) as local:
            yield local

    @contextmanager
    def local(self, *, creates: bool = False) -> Iterator[LocalCalls]:
        """The data folder itself; refused where only a server was named.

        It must be there unless the command `creates` one by being the first: a folder that is mistyped or not
        mounted is no empty one. Raises InvalidInput, and what opening it raises.
        """
        self.not_remote("this works on the data folder itself: leave --url out and give --data")
        settings = self.settings()
        self.there_or_new(creates=creates)
        from hmi.api.local import LocalCalls
        from hmi.manager.maintenance import probe_plots

        probe_plots(settings.data)
        local = LocalCalls(settings)
        try:
            yield local
        finally:
            local.close()

    def not_remote(self, message: str) -> None:
        """Raises InvalidInput where a server was named."""
        if self.remote:
            cure = " (HMI_URL is set: unset it, or give --data)" if self.url_of_environment else ""
            raise InvalidInput(message + cure)

    def there_or_new(self, *, creates: bool) -> None:
        """Say of a data folder that is not there yet that it will be made, or raise InvalidInput."""
        from hmi.stores.layout import Layout

        data = self.settings().data
        if Layout(data).registry.is_dir():
            return
        if not creates:
            raise InvalidInput(
                f"there is no data folder at {data}: check --data, HMI_DATA and the place where you stand; "
                "'hmi root import' makes a new one"
            )
        notes.print(f"making the data folder {data}", markup=False, soft_wrap=True)

    def may_start_jobs(self) -> None:
        """Refuse to run a job beside a live server, whose runner it would race."""
        if self.remote:
            return
        from hmi.api.server_lock import live_server

        data = self.settings().data
        server = live_server(data)
        if server is not None:
            where = server.url or "URL"
            raise Conflict(f"a server (process {server.pid}) works on {data}: add --url {where}")
