"""Every command: the options that all have, which need a data folder, and which load the heavy libraries."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

from hmi.cli import cli, main
from hmi.cli.machine.settings import markdown
from hmi.config import Settings
from hmi.config.described import settings
from tests.hmi.labs.api_world import hmi

REPO = Path(__file__).parents[3]
COMMANDS = {
    "backup create": "",
    "backup list": "",
    "backup prune": "OUT --keep 1",
    "backup verify": "OUT",
    "audit follow": "--seconds 0",
    "audit list": "",
    "audit verify": "",
    "check": "ROWS",
    "cluster down": "--yes",
    "cluster lead": "",
    "cluster leave": "",
    "cluster plan": "--seconds 1 --tenants 50",
    "cluster scale": "3",
    "cluster servers": "",
    "cluster status": "",
    "cluster up": "--bucket OUT",
    "cluster upgrade": "",
    "config check": "",
    "config init": "OUT",
    "config show": "",
    "doctor": "",
    "domain create": "tiny/a FILE",
    "domain delete": "tiny/a --yes",
    "domain erase": "tiny/a FILE --yes",
    "domain grow": "tiny/a",
    "domain list": "",
    "domain rollback": "tiny/a v1",
    "domain set": "tiny/a --record-misses on",
    "domain show": "tiny/a",
    "domain update": "tiny/a FILE",
    "file delete": "file-1 --yes",
    "file list": "",
    "file show": "file-1",
    "generate": "acme.m text",
    "infer": "acme.m text",
    "job cancel": "j1",
    "job list": "",
    "job resume": "j1",
    "job show": "j1",
    "job watch": "j1",
    "key create": "acme",
    "key list": "acme",
    "key revoke": "k1 acme",
    "key rotate": "k1 acme",
    "model cascade delete": "acme.m --yes",
    "model cascade show": "acme.m",
    "model create": "acme.m ROWS --domain tiny",
    "model delete": "acme.m --yes",
    "model exits": "acme.m",
    "model export-module": "acme.m OUT",
    "model feedback": "acme.m ROWS",
    "model import-module": "acme.m ADAPTER --domain tiny",
    "model depth": "acme.m",
    "model known": "acme.m",
    "model list": "",
    "model objective": "acme.m",
    "model publish": "acme.m 1",
    "model ramps": "acme.m --unlabelled FILE",
    "model report": "acme.m",
    "model rollback": "acme.m 1",
    "model show": "acme.m",
    "model tokens": "acme.m ROWS",
    "model update": "acme.m ROWS",
    "openapi": "",
    "profile cascade": "acme.m ROWS --small acme.s",
    "profile executors": "tiny",
    "profile stages": "tiny",
    "restore": "OUT",
    "reference": "--out OUT",
    "root delete": "tiny --yes",
    "root export-locality": "tiny OUT",
    "root import": "tiny ADAPTER",
    "root list": "",
    "root measure": "tiny FILE",
    "root priority": "tiny low",
    "root shards": "tiny",
    "root show": "tiny",
    "serve": "--port 0",
    "settings": "",
    "store compact": "--all",
    "store diff": "tiny tiny",
    "store export": "tiny OUT",
    "store gc": "",
    "store import": "FILE",
    "store info": "",
    "store pull": "tiny OUT",
    "store push": "tiny OUT",
    "store remote delete": "tiny OUT --yes",
    "store remote gc": "OUT",
    "store remote list": "OUT",
    "store scrub": "",
    "store top": "",
    "store verify": "",
    "tenant create": "acme",
    "tenant delete": "acme --yes",
    "tenant list": "",
    "tenant onboard": "PLAN",
    "tenant set": "acme --weight 2",
    "tenant show": "acme",
    "top": "",
}
"""The arguments of each command. FILE, ROWS, PLAN and ADAPTER are paths that exist, OUT does not."""
NO_JSON = {"reference", "serve"}
"""Commands without --json."""
COMMON = ("--data", "--config", "--url", "--key", "--ca")
NO_SERVER = {"check", *(f"cluster {name}" for name in ("down", "plan", "scale", "status", "upgrade"))}
"""Commands that need nothing but their arguments, and ignore HMI_URL."""
NO_DATA = {*NO_SERVER, "cluster lead", "cluster servers", "job watch"}
"""Commands without --data. `job watch` needs a server."""
NO_URL = {
    **dict.fromkeys(
        (f"store {name}" for name in ("compact", "diff", "export", "gc", "import", "scrub", "verify")),
        "it reads or changes the files of the store",
    ),
    **dict.fromkeys(("store pull", "store push"), "it reads or changes the files of the store"),
    **dict.fromkeys((f"store remote {name}" for name in ("delete", "gc", "list")), "it works on the place"),
    "backup prune": "it changes the backups themselves",
    "backup verify": "it reads the backup itself",
    "audit verify": "it reads the files of the log",
    "config check": "they are those of this machine",
    "config init": "it writes a file on this machine",
    "config show": "they are those of this machine",
    "job resume": "a server resumes its jobs by itself",
    "profile executors": "it measures this machine",
    "profile stages": "it measures this machine",
    "reference": "it writes the pages of this release",
    "restore": "it makes a data folder on this machine",
    "cluster leave": "it stops servers of this machine",
    "cluster up": "it starts servers",
    "root export-locality": "it reads the root's files",
    "root measure": "it reads the root's files and its source",
    "serve": "it is the server",
    "settings": "they are those of this machine",
}
"""Commands that refuse --url, and why."""
ELSEWHERE = {
    "check",
    *(name for name in COMMANDS if name.startswith("cluster ")),
    "config check",
    "config init",
    "config show",
    "doctor",
    "openapi",
    "settings",
    "serve",
    "root import",
    "tenant create",
    "job watch",
    "reference",
}
ELSEWHERE |= {"backup list", "backup prune", "backup verify", "restore"}
ELSEWHERE |= {"store remote delete", "store remote gc", "store remote list"}
"""Commands that need no data folder, create one, or (job watch) call a server."""


def leaves(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


class Asked(BaseHTTPRequestHandler):
    """Answers each call with the same error, which shows that the server was asked."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"error": {"kind": "not_found", "message": "the server was asked"}}).encode()
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  # the base class's names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def called(tmp_path: Path) -> dict[str, list[str]]:
    """The arguments of each command, with paths in this test's folder."""
    (tmp_path / "file").write_text("a text\nanother\n")
    plan = {"tenant": "acme", "model": "m", "domain": "tiny", "task": "pair", "data": "rows"}
    (tmp_path / "plan.json").write_text(json.dumps([plan]))
    (tmp_path / "rows").write_text("text,label\n" + "a text,a\nanother,b\n" * 20)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter.safetensors"):
        (adapter / name).write_text("{}")
    places = {
        "FILE": tmp_path / "file",
        "ROWS": tmp_path / "rows",
        "OUT": tmp_path / "out",
        "ADAPTER": adapter,
        "PLAN": tmp_path / "plan.json",
    }
    return {
        name: [*name.split(), *(str(places.get(part, part)) for part in given.split())]
        for name, given in COMMANDS.items()
    }


def test_the_table_has_every_command() -> None:
    assert sorted(name for name, _ in leaves(cli)) == sorted(COMMANDS)


def test_every_command_takes_json_and_a_url() -> None:
    for name, command in leaves(cli):
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(COMMON) <= options, name
        assert ("--json" in options) != (name in NO_JSON), name


def test_an_option_without_effect_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in ((["--importance"], True), ([], False)):
        with pytest.raises(SystemExit):
            main(["root", "shards", "tiny", *options, "--url", url])
        assert ("--importance does nothing" in capsys.readouterr().err) == said


def test_a_url_is_used_or_refused(
    called: dict[str, list[str]], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in called.keys() - NO_SERVER:
        told = hmi(capsys, *called[name], "--url", url, code=1)
        assert ("leave --url out" in told) == (name in NO_URL), (name, told)
        assert ("the server was asked" in told) == (name not in NO_URL), (name, told)


def offered(command: click.Command, name: str) -> list[click.Option]:
    """The options that a command's help shows."""
    context = click.Context(command, info_name=name)
    options = [
        p for p in command.get_params(context) if isinstance(p, click.Option) and p.get_help_record(context)
    ]
    page = command.get_help(context)
    assert all(option.opts[-1] in page for option in options)
    return options


def test_help_offers_what_is_not_refused(
    called: dict[str, list[str]], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each flag, each choice, --url and --data is accepted, added to the command's usual arguments."""
    refusal = re.compile("leave --[a-z-]+ out|add --url|No such option")
    for name, command in leaves(cli):
        given = {option.opts[0]: option for option in offered(command, name)}
        assert ("--url" in given) == ("--key" in given) == (name not in {*NO_URL, *NO_SERVER}), name
        assert ("--data" in given) == ("--config" in given) == (name not in NO_DATA), name
        assert ("--ca" in given) == ("--url" in given), name
        for option, about in given.items():
            if option == "--help":
                continue
            value = {"--url": [url], "--data": [str(tmp_path / "typo")]}.get(option)
            if value is None and (about.is_flag or isinstance(about.type, click.Choice)):
                value = [] if about.is_flag else [about.type.choices[-1]]
            if value is None:
                continue
            place = (
                ()
                if option in COMMON
                else ("--url", url)
                if "--url" in given
                else ("--data", tmp_path / "typo")
            )
            if name in ELSEWHERE and "--url" not in place and option != "--url":
                continue
            with pytest.raises(SystemExit):
                main([str(a) for a in (*called[name], option, *value, *place)])
            out, err = capsys.readouterr()
            assert not refusal.search(out + err), (name, option, err)


def test_nothing_makes_a_data_folder_that_it_only_looks_into(
    called: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for name, arguments in called.items():
        if name not in ELSEWHERE:
            told = hmi(capsys, *arguments, "--data", tmp_path / "typo", code=1)
            assert f"there is no data folder at {tmp_path / 'typo'}" in told, name
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_data_folder_is_said_to_be_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tenant", "create", "acme", "--data", str(tmp_path / "d")])
    assert "creating the data folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["tenant", "create", "zeta", "--data", str(tmp_path / "d")])
    assert "making" not in capsys.readouterr().err


def test_the_settings_page_is_what_the_class_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: python -m hmi settings --markdown --out docs/settings.md"
    assert hmi(capsys, "settings", "--markdown") == page
    for setting in settings():
        assert setting.about.endswith("."), (
            f"say in hmi/config/settings.py, below {setting.name}, what it does"
        )
        assert f"`{setting.variable}`" in page
    shown = json.loads(hmi(capsys, "settings", "--json", "--data", "/somewhere"))
    assert [row["variable"] for row in shown] == [f"HMI_{field.name.upper()}" for field in fields(Settings)]
    assert shown[0]["value"] == "/somewhere"
