"""The parts of the client that need no server: sources, settings, errors, imports, generated files."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hmi
from hmi.client.answers import JobStatus
from hmi.client.batches import batches
from hmi.client.calls import infer
from hmi.client.errors import ApiError, InvalidInput, Unreachable, seconds
from hmi.client.progress import shown
from hmi.client.retrying import Attempts
from hmi.client.rows import lines, opener, packed
from hmi.client.uploads import Multipart, OnServer, parts, upload
from scripts.sync_client import stale
from tests.client.scripted_server import Said, scripted
from tests.hmi.labs.tls_lab import Authority

ROWS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]


def content(source: Any) -> list[Any]:
    opened, _, _ = opener(source, "data")
    return [json.loads(line) for line in b"".join(opened()).splitlines()]


class Frame:
    """A stand-in for a data frame of polars: the client knows it by this method."""

    def iter_rows(self, *, named: Any) -> Iterator[Any]:
        assert named
        yield from ({**row, "note": None, "number": float("nan")} for row in ROWS)


class Table:
    """A stand-in for a table of Arrow."""

    def to_batches(self, max_chunksize: int) -> Any:
        return [self] if max_chunksize else []

    def to_pylist(self) -> Any:
        return ROWS


def test_rows_come_from_many_sources(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for source in (ROWS, iter(ROWS), file, str(file), file.read_bytes(), Frame(), Table()):
        assert content(source) == ROWS
    assert content(["one", "two"]) == [{"text": "one"}, {"text": "two"}]
    assert b"".join(lines([b"raw ", b"bytes"])) == b"raw bytes"


def test_numbers_of_numpy_are_numbers_and_other_things_are_refused() -> None:
    import numpy

    row = {"value": numpy.float32(0.5), "tokens": numpy.array(["a", "b"])}
    assert json.loads(b"".join(lines([row]))) == {"value": 0.5, "tokens": ["a", "b"]}
    with pytest.raises(InvalidInput, match="cannot be sent as JSON"):
        list(lines([{"text": object()}]))
    with pytest.raises(InvalidInput, match="no source of rows"):
        opener(5, "data")  # type: ignore[arg-type]


def test_wrong_inputs_reach_the_server_which_names_their_places() -> None:
    wrong = [{"text": None}, ["a", 5], {"tokens": 5}]
    assert [batch.inputs for batch in batches(wrong, 9)] == [
        [{"text": None}, {"tokens": ["a", 5]}, {"tokens": 5}]
    ]


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidInput, match="half of a surrogate pair"):
        infer("/infer/acme.mood", {"inputs": ["\ud800"]}).payload(0.0)


def test_what_is_compressed_already_is_sent_as_it_is() -> None:
    once = b"".join(packed(iter([b"text"] * 100), "gzip"))
    assert b"".join(packed(iter([once]), "zstd")) == once
    assert b"".join(packed(iter([b"a", b"b"]), None)) == b"ab"


def test_the_length_is_sent_where_it_is_known(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"x" * 100_000)
    body = Multipart({"model": "m"}, {"data": upload("data", file, None)})
    assert int(body.headers["Content-Length"]) == len(b"".join(body.pieces()))
    assert "Content-Length" not in Multipart({}, {"data": upload("data", file, "zstd")}).headers
    there, sent = parts({"data": OnServer("train.jsonl"), "dev": None}, None)
    assert (there, sent) == ({"data": {"path": "train.jsonl"}}, {})


def test_settings_come_from_arguments_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMI_URL", "http://there:1/")
    monkeypatch.setenv("HMI_KEY", "k")
    with hmi.Client() as client:
        assert (client.config.url, client.config.key) == ("http://there:1", "k")
    with hmi.Client("http://here:2", "mine") as client:
        assert (client.config.url, client.config.key) == ("http://here:2", "mine")
    for wrong in ("ftp://x", "http://", "http://u:p@host", "http://host?x=1"):
        with pytest.raises(InvalidInput, match="no address"):
            hmi.Client(wrong)
    with pytest.raises(InvalidInput, match="no file"):
        hmi.Client("https://x", ca="/none.pem")
    with pytest.raises(InvalidInput, match="batch"):
        hmi.Client(batch=0)
    with pytest.raises(InvalidInput, match="copy it again"):
        hmi.Client(key="k\n")


def test_waits_double_and_obey_the_server() -> None:
    now = 0.0
    attempts = Attempts(10, 100.0, True, clock=lambda: now, draw=lambda: 0.5)
    waits = [attempts.wait_after(Unreachable("no", sent=True)) for _ in range(4)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert seconds("Wed, 21 Oct 2026 07:28:00 GMT") is None
    assert seconds("-1") is None
    assert seconds("1e9") == 3600.0
    now = 99.0
    with pytest.raises(Unreachable):
        attempts.wait_after(Unreachable("no", sent=True))
    once = Attempts(10, 100.0, False, clock=lambda: now)
    assert once.wait_after(Unreachable("never left", sent=False)) > 0
    with pytest.raises(Unreachable):
        once.wait_after(Unreachable("perhaps done", sent=True))


def test_progress_is_a_line_for_each_phase_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def status(phase: str, step: int) -> JobStatus:
        progress = {"phase": phase, "step": step, "total": 9, "rate": 2.0, "eta_ms": 61_000, "loss": 0.5}
        given = {"job": "j", "kind": "fine_tune", "state": "running", "target": "m", "created": "now"}
        return JobStatus.model_validate({**given, "progress": progress})

    with shown(True, "j") as report:
        for i in range(3):
            report(status("reading" if i == 0 else "fitting", i))
    said = capsys.readouterr().err
    assert (said.count("reading"), said.count("fitting")) == (1, 1)
    with shown(False, "j") as report:
        report(status("reading", 0))
    assert capsys.readouterr().err == ""


def test_https_trusts_the_given_authority_only(tmp_path: Path) -> None:
    authority, stranger = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    with scripted(lambda r, n: Said(body={"tenants": []}), context) as server:
        with hmi.Client(server.url, ca=authority.file) as client:
            assert client.tenants.list() == []
        with hmi.Client(server.url, ca=stranger.file, attempts=1) as client:
            with pytest.raises(Unreachable, match="give its authority's") as caught:
                client.tenants.list()
        assert not caught.value.sent


def test_an_error_survives_a_process_boundary() -> None:
    import copy

    error = ApiError("no", details={"field": "x"}, status=422, request_id="r")
    copied = copy.copy(error)
    assert (copied.message, copied.details, copied.status, str(copied)) == (
        "no",
        {"field": "x"},
        422,
        "no (request r)",
    )


def test_a_field_without_effect_warns_and_is_not_sent() -> None:

    with scripted(lambda r, n: Said(202, {"job": "j1"})) as server, hmi.Client(server.url) as client:
        with pytest.warns(DeprecationWarning, match="does nothing"):
            client.roots.shard("tiny", importance=True)
    assert server.sent[0].json == {}


def test_the_synchronous_client_is_made_of_the_asynchronous_one() -> None:
    assert stale() == [], "run: python scripts/sync_client.py"


def test_importing_hmi_loads_nothing_and_its_client_nothing_that_computes() -> None:
    code = (
        "import sys, hmi; assert 'httpx' not in sys.modules and 'pydantic' not in sys.modules; "
        "hmi.client.errors.NotFound; hmi.Client; "
        "heavy = ('torch', 'numpy', 'numba', 'aiohttp', 'lmdb', 'tokenizers', 'hmi.api', 'hmi.core'); "
        "print([name for name in heavy if name in sys.modules], sorted(set(hmi._OF_CLIENT) - set(dir(hmi))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        hmi.nothing_of_ours  # noqa: B018 (the look-up itself is the test)
