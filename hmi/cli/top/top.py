"""`hmi top`: a running server, live in the terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

import click
from rich.console import Console
from rich.live import Live

from hmi.cli.framework.base import Command, pass_session
from hmi.cli.framework.client import HttpClient, RemoteError
from hmi.cli.framework.output import PLAIN_WIDTH, print_json
from hmi.cli.framework.session import CliSession
from hmi.cli.top.figures import Figures, figures
from hmi.cli.top.scrape import Scrape
from hmi.cli.top.view import view
from hmi.errors import InvalidInput, Unavailable

FRESH_S = 1.05
"""The server shows figures up to a second old, so sooner it may show the same ones again."""


@click.command("top", cls=Command)
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between views.",
)
@click.option("--all", "of_all", is_flag=True, help="All servers that share the bucket, as one.")
@click.option("--once", is_flag=True, help="Print one view and exit, as without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of one view as JSON.")
@pass_session
def top(session: CliSession, interval: float, of_all: bool, once: bool, as_json: bool) -> None:
    """Watch a server, or all that share its bucket: answers, queue, batches, pool, executors, tenants.

    Without --url it is the server that runs on the data folder. Rates, means and times (p50, p95) are those
    of the last interval; of the queue, p50 and p95 are the times that texts waited. Tenants are shown only
    with an administrator's key, if the server needs keys. To leave, press q.
    """
    watch = Watch(session.client(server_of(session), timeout_s=10.0), of_all)
    console = Console(highlight=False)
    if as_json or once or not console.is_terminal:
        shown = watch.over(interval)
        state = watch.state()
        if as_json:
            print_json({"url": watch.client.url, "state": state, **asdict(shown)})
            return
        if not console.is_terminal:
            console = Console(highlight=False, width=PLAIN_WIDTH)
        console.print(view(shown, watch.client.url, state, console.width))
        return
    with suppress(KeyboardInterrupt):  # the usual way to leave such a view
        _live(watch, interval, console)


def server_of(session: CliSession) -> str:
    """The address of the server that the options name. Raises InvalidInput, Unavailable."""
    if session.url is not None:
        return session.url
    from hmi.api.process.lock import live_server

    data = session.settings().data
    found = live_server(data)
    if found is None:
        session.require_data_folder(creates=False)
        raise InvalidInput(
            f"no server runs on {data}: start one with 'hmi serve', or name one with --data or --url"
        )
    if not found.url:
        raise Unavailable(f"the server on {data} has not written its address yet: try again, or give --url")
    return found.url


@dataclass
class Watch:
    """The scrapes of one server."""

    client: HttpClient
    of_all: bool = False
    """Whether to add up all servers that share the bucket."""
    last: Scrape | None = None
    shown: Figures | None = None

    def look(self) -> Figures:
        """Scrape the server and return the figures since the scrape before.

        If the server shows the same values again, returns the same figures. Raises Unavailable,
        InvalidInput (it is no HMI server), RemoteError.
        """
        now = self._scrape()
        if self.shown is None or self.last is None or now.at != self.last.at:
            self.shown, self.last = figures(self.last, now), now
        return self.shown

    def over(self, seconds: float) -> Figures:
        """The figures of the next `seconds`. Raises as `look`."""
        self.look()
        time.sleep(max(seconds, FRESH_S))
        return self.look()

    def state(self) -> str:
        """`ready`, or what the server says is missing. Raises Unavailable."""
        try:
            self.client.request("GET", "/readyz")
        except RemoteError as error:
            return error.message
        return "ready"

    def _scrape(self) -> Scrape:
        if not self.of_all:
            return _scrape(self.client)
        servers = self.client.request("GET", "/manage/servers")["servers"]
        found = [_scrape(replace(self.client, url=one["url"])) for one in servers if one["view"] is not None]
        return Scrape.of_all(found or [_scrape(self.client)])


def _scrape(client: HttpClient) -> Scrape:
    text = client.text("/metrics")
    try:
        now = Scrape.parse(text)
    except ValueError:
        now = Scrape({})
    if not now.at:
        raise InvalidInput(f"{client.url} does not answer like this release of HMI: check --url")
    return now


def _live(watch: Watch, interval: float, console: Console) -> None:
    watch.look()  # an error before the first view ends the command
    where = watch.client.url
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            begun = time.monotonic()
            try:
                watch.look()
                state = watch.state()
            except (Unavailable, RemoteError) as error:
                state = error.message
            assert watch.shown is not None
            live.update(view(watch.shown, where, state, *console.size), refresh=True)
            while (left := begun + interval - time.monotonic()) > 0:
                if "q" in key(left).lower():
                    return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Context manager: yields a function that waits for a key, at most some seconds; "" if none came.

    What was typed may be several characters.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(seconds: float) -> str:
    found, _, _ = select.select([sys.stdin], [], [], seconds)
    # Not sys.stdin.read, whose buffer would hide the rest of an arrow key's three bytes from select.
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") if found else ""
