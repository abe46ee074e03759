"""Settings from flags, variables and a TOML file: which source wins, and the errors for wrong values."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from hmi.cli import cli
from hmi.cli.machine.serve import METAVARS
from hmi.config import Settings
from hmi.config.described import commented, settings
from hmi.config.settings import DEFAULTS
from hmi.config.sources import gather, read, unknown_variables
from hmi.config.values import environment, flag
from hmi.errors import InvalidInput
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.tls_lab import Authority


def toml(folder: Path, text: str) -> Path:
    file = folder / "hmi.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    file = toml(tmp_path, 'port = 1\nstreams = 2\njob_workers = 3\nstages = ["exits", "tokens"]\n')
    environ = {"HMI_CONFIG": str(file), "HMI_PORT": "4", "HMI_STREAMS": "5"}
    found = read(environ, None, {"port": 6, "host": None})
    told = {name: (getattr(found.settings, name), found.sources[name]) for name in found.sources}
    assert told["port"] == (6, "flag --port")
    assert told["streams"] == (5, "environment HMI_STREAMS")
    assert told["job_workers"] == (3, f"{file} line 3")
    assert told["stages"] == ("exits,tokens", f"{file} line 4")
    assert told["host"] == ("127.0.0.1", "default")
    assert Settings.from_env(environ).streams == 5
    other = toml(tmp_path, "").with_name("other.toml")
    other.write_text("queue_s = 7\n")
    assert read(environ, other).settings.queue_s == 7, "a file that is named replaces that of HMI_CONFIG"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_conections = 4\n", "line 1: unknown setting 'max_conections': did you mean max_connections?"),
        ("[server]\nport = 1\n", "line 1: unknown setting 'server'"),
        ('port = "8080"\n', "line 1: port = '8080' is not a whole number: leave the quotes out"),
        ("\nport = 70000\n", "line 2: port = 70000 is impossible: give a whole number from 0 to 65535"),
        ("port = true\n", "line 1: port = True is not a whole number"),
        ('pool_bytes = "much"\n', "pool_bytes='much' is not a size: give bytes, or with K"),
        ("access_log = 1\n", "line 1: access_log = 1 is not true or false"),
        ('device = ["cpu"]\n', "line 1: device = ['cpu'] is not a text in quotes"),
        ('stages = ["exit"]\n', "line 1: stages = 'exit': 'exit' is unknown"),
        ("trace_sample = 2\n", "line 1: trace_sample = 2 is impossible: give a number from 0 to 1"),
        ('log_level = "loud"\n', "line 1: log_level = 'loud' is unknown: use debug, info, warning or error"),
        ("port = \n", "is not TOML in UTF-8: Invalid value (at line 1, column 8)"),
        ('tls_cert = "a.pem"\n', "tls_cert needs tls_key: give both, or neither"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line_and_the_cure(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read({}, toml(tmp_path, text))
    assert told in caught.value.message
    if "needs" not in told:
        assert caught.value.message.startswith(str(tmp_path / "hmi.toml"))


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = -1\nprot = 2\nstreams = 0\n")
    found = gather({"HMI_QUEUE_S": "soon", "HMI_PORT": "tcp://10.0.0.1:80"}, file)
    told = [problem.message for problem in found.problems]
    assert len(told) == 5
    assert any("enableServiceLinks" in text for text in told)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read({"HMI_CONFIG": str(tmp_path / "none.toml")})


def test_sizes_and_paths_of_a_file(tmp_path: Path) -> None:
    file = toml(tmp_path, 'data = "d"\npool_bytes = "256M"\nbody_bytes = 4096\ntls_cert = ""\n')
    settings = read({}, file).settings
    assert settings.data == tmp_path / "d", "a relative path starts at the file's folder"
    assert (settings.pool_bytes, settings.body_bytes, settings.tls_cert) == (256 << 20, 4096, None)


def test_variables_that_nothing_reads_are_told() -> None:
    told = unknown_variables({"HMI_PROT": "1", "HMI_PORT": "1", "HMI_URL": "x", "PATH": "y"})
    assert told == ["HMI_PROT is set, but no setting has that name: did you mean HMI_PORT?"]


def test_another_process_gets_the_same_settings(tmp_path: Path) -> None:
    changed = Settings(data=tmp_path, access_log=True, trace_sample=0.25, pool_bytes=5 << 20, stages="exits")
    changed = replace(changed, tls_cert=tmp_path / "c", tls_key=tmp_path / "k")
    assert Settings.from_env(environment(changed)) == changed


def test_every_setting_is_a_flag_of_serve() -> None:
    serve = cli.get_command(None, "serve")  # type: ignore[arg-type]  # the group needs no context
    assert serve is not None
    flags = {option for parameter in serve.params for option in parameter.opts}
    assert {flag(field.name) for field in fields(Settings)} <= flags


def test_the_file_that_init_writes_has_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hmi.toml"
    hmi(capsys, "config", "init", file)
    assert file.read_text() == commented()
    assert "--force" in hmi(capsys, "config", "init", file, code=1)
    assert read({}, file).settings == Settings()
    uncommented = "".join(line[1:] if line[1:2].isalpha() else line for line in file.open())
    file.write_text(uncommented.replace('data = "', f'data = "{Path.cwd()}/'))
    found = read({}, file)
    assert found.settings == Settings(), "the commented values are the defaults"
    assert {source for name, source in found.sources.items() if DEFAULTS[name] is not None} != {"default"}


def test_show_names_the_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toml(tmp_path, "port = 1234\n")
    monkeypatch.setenv("HMI_STREAMS", "3")
    shown = json.loads(hmi(capsys, "config", "show", "--json", "--config", file, "--data", tmp_path))
    by_name = {row["setting"]: (row["value"], row["source"]) for row in shown}
    assert by_name["port"] == (1234, f"{file} line 1")
    assert by_name["streams"] == (3, "environment HMI_STREAMS")
    assert by_name["data"] == (str(tmp_path), "flag --data")
    assert list(by_name) == [field.name for field in fields(Settings)]


def test_check_names_every_problem_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority.create(tmp_path / "certificates")
    (cert, key), (other, _) = authority.issue(), authority.issue("other")
    sound = f'port = 0\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    file = toml(tmp_path, sound)
    assert json.loads(hmi(capsys, "config", "check", file, "--json", "--data", tmp_path / "d"))["sound"]
    (tmp_path / "file").write_text("")
    toml(tmp_path, f'data = "file"\ntls_cert = "{other}"\ntls_key = "{key}"\npool_bytes = "900T"\n')
    told = hmi(capsys, "config", "check", file, code=1)
    for part in ("is no folder", "is not the key of the certificate", "which is less"):
        assert part in told, told
    told = hmi(capsys, "config", "check", toml(tmp_path, "port = -1\nprot = 2\n"), code=1)
    assert told.count("error:") == 2


def test_a_rate_is_not_a_time() -> None:
    units = {setting.name: setting.unit for setting in settings()}
    assert units["io_bytes_per_s"] == "bytes a second"
    assert (units["queue_s"], units["batch_ms"], units["pool_bytes"]) == ("seconds", "milliseconds", "bytes")
    rates = {unit for name, unit in units.items() if name.endswith("_per_s")}
    assert {METAVARS[unit] for unit in rates} == {"RATE"}


def test_grpc_has_a_port_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="give gRPC a port of its own"):
        Settings(port=9000, grpc_port=9000)
    assert Settings(port=0, grpc_port=0).grpc_port == 0


@pytest.mark.parametrize(
    "given", ["10.0.0.5:8080", "node-5", "ftp://a:1", "http://", "http://[::", "http://a:99999", "http://a/b"]
)
def test_an_address_that_other_servers_cannot_use_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="no address of a server") as error:
        Settings(node_url=given)
    assert error.value.details["field"] == "node_url"
    assert Settings(node_url="https://[::1]:8080/").node_url == "https://[::1]:8080"
