"""`hmi doctor`: finds what is wrong with an installation, a data folder or a server, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.options import check_target
from hmi.cli.framework.output import notes, print_json
from hmi.cli.framework.session import CliSession
from hmi.config.sources import Configuration, gather, read, unknown_variables
from hmi.errors import HmiError, InvalidInput

if TYPE_CHECKING:
    from hmi.doctor import Finding
    from hmi.doctor.server import Ask

COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(cls=Command)
@click.option("--deep", is_flag=True, help="Read every byte of the data folder; this may take minutes.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a zip file for a bug report, without names, keys and texts.",
)
@as_json
@pass_session
def doctor(session: CliSession, deep: bool, bundle: Path | None, as_json: bool) -> int:
    """Check the installation, the data folder and its server, and say what to do about each finding.

    With --url only that server is checked. Exits with 1 if there is a problem; warnings do not count.
    """
    if bundle is not None:
        check_target(bundle)
    if session.remote and (deep or bundle is not None):
        raise InvalidInput("--deep and --bundle read a data folder, and --url names a server: give --data")
    findings = []
    for finding in _findings(session, deep):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if bundle is not None:
        _write(session, bundle, findings)
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        print_json({"sound": not problems, "findings": [asdict(finding) for finding in findings]})
    _summarise(findings, problems)
    return int(bool(problems))


def _findings(session: CliSession, deep: bool) -> Iterable[Finding]:
    from hmi.doctor import examine
    from hmi.doctor.finding import problem, warning
    from hmi.doctor.server import server_findings

    if session.url is not None:
        yield from server_findings(session.url, session.client(session.url, timeout_s=10.0).answer)
        return
    gathered = gather(None, session.config, session.flags())
    for error in gathered.problems:
        yield problem("settings", error.message)
    for text in unknown_variables():
        yield warning("settings", text)

    def ask_of(url: str) -> Ask:
        return session.client(url, timeout_s=10.0).answer

    yield from examine(_configuration(session).settings, ask_of, deep=deep)


def _write(session: CliSession, bundle: Path, findings: list[Finding]) -> None:
    """Write the file for a bug report."""
    from hmi.doctor.bundle import redactor_of, write_bundle

    redact = redactor_of(_data(session))
    parts = write_bundle(bundle, findings, _configuration(session), _metrics(session), redact)
    text = f"{bundle} has {', '.join(parts)}: look at it before you send it"
    notes.print(text, markup=False, soft_wrap=True)


def _configuration(session: CliSession) -> Configuration:
    """The settings; the defaults if they are wrong, so that the other checks can still run."""
    with suppress(HmiError):
        return session.configuration()
    return read({}, None, {"data": session.data})


def _data(session: CliSession) -> Path:
    return _configuration(session).settings.data


def _metrics(session: CliSession) -> str:
    """The metrics of the server on the data folder, as everybody may see them; "" without a server."""
    from hmi.api.process.lock import live_server

    server = live_server(_data(session))
    if server is None or not server.url:
        return ""
    with suppress(HmiError):
        return HttpClient(server.url, None, session.ca).text("/metrics")
    return ""


def _print(finding: Finding) -> None:
    label = click.style(f"{finding.level:8}", fg=COLOURS[finding.level])
    click.echo(f"{label} {finding.check:13} {' '.join(finding.text.split())}")


def _summarise(findings: list[Finding], problems: list[Finding]) -> None:
    counts = Counter(finding.level for finding in findings)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems, the first"
        text = f"{count}: {problems[0].text}"
        notes.print(text, markup=False, soft_wrap=True, style="red")
    else:
        notes.print(f"no problems, {counts['warning']} warnings")
