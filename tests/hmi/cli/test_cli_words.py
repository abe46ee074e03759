"""The words of commands: figures and the next command at the end; the curing option for a mistake."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path

import click
import pytest

from hmi.cli import main
from hmi.cli.framework import endings
from hmi.cli.models import report
from hmi.cli.models.infer import _hint
from hmi.cli.tenants import batch
from hmi.cli.tenants.onboarding import Outcome
from hmi.config import Settings
from hmi.core import TaskRules
from hmi.manager import Manager
from hmi.model.tasks import KINDS
from tests.hmi.labs.api_world import corpus, hmi, rows

OPTIONS = ("--option", "epochs=2", "--option", "module.rank=2", "--option", "max_length=32")


def test_a_folder_that_is_named_wins_over_the_environments_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HMI_URL", "http://127.0.0.1:9")
    for words in (("root", "list", "--data", folder), ("--data", folder, "root", "list")):
        assert "tiny" in hmi(capsys, *words)
    assert "there is no data folder" in hmi(capsys, "root", "list", "--data", tmp_path / "none", code=1)
    assert "unset it, or give --data" in hmi(capsys, "store", "verify", code=1)
    assert "127.0.0.1:9" in hmi(
        capsys, "root", "list", "--url", "http://127.0.0.1:9", "--data", folder, code=1
    )


def test_what_is_made_is_told_with_what_comes_next(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", folder)
    (tmp_path / "rows").write_bytes(rows(60))
    (tmp_path / "text").write_bytes(corpus(100))

    told = hmi(capsys, "model", "create", "acme.one", tmp_path / "rows", "--domain", "tiny", *OPTIONS, *data)
    for part in (
        "acme.one, version 1",
        "score: accuracy",
        "held-out rows",
        "trained on: 48 rows",
        "epochs: 2 of 2",
        "size: ",
        "next: hmi infer acme.one",
    ):
        assert part in told

    told = hmi(capsys, "domain", "create", "tiny/a", tmp_path / "text", "--alpha", 20, *data)
    for part in (
        "tiny/a, version v",
        "trigrams",
        "coverage: 20% of the n-grams",
        "times the text",
        "--budget",
        "next: hmi model create TENANT.MODEL ROWS --domain tiny/a",
    ):
        assert part in told, told
    found = json.loads(hmi(capsys, "domain", "show", "tiny/a", "--json", *data))
    assert found["versions"][0]["report"]["text_bytes"] == (tmp_path / "text").stat().st_size

    job = hmi(
        capsys, "model", "create", "acme.two", tmp_path / "rows", "--domain", "tiny", "--detach", *data
    ).strip()
    again = hmi(capsys, "model", "create", "acme.two", tmp_path / "rows", "--domain", "tiny", *data, code=1)
    assert f"hmi job resume {job}" in again
    assert "cancelled" in hmi(capsys, "job", "cancel", job, "--json", *data)

    assert "leave --tokens out" in hmi(capsys, "infer", "acme.m", "the market", "--tokens", *data, code=1)


def test_an_error_about_a_form_names_the_option() -> None:
    asks = f"acme.m is a tagging model: give {KINDS['tagging'](('O',)).forms[1]} in inputs[0]"
    assert _hint(asks, "acme.m", pair=True, tokens=False) == "; leave --pair out"
    paired = (
        f"acme.m is a pair model: give {KINDS['pair'](('a', 'b'), TaskRules(paired=True)).forms[1]} "
        "in inputs[0]"
    )
    assert "--pair" in _hint(paired, "acme.m", pair=False, tokens=False)


def test_detached_on_a_folder_is_said_to_wait(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows"
    file.write_bytes(rows(60))
    create = ["model", "create", "acme.two", file, "--domain", "tiny", "--detach", "--data", folder]
    code, out, err = said(capsys, *create)
    assert code == 0
    assert "nothing runs it yet" in err
    assert f"hmi job resume {out.strip()}" in err


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[object, str, str]:
    """Run a command: (exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code, *capsys.readouterr()


def test_wrong_input_comes_back_in_the_users_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a text\nanother\n")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for arguments, words in WRONG.items():
        given = [tmp_path / "file" if part == "FILE" else part for part in arguments.split()]
        code, _, told = said(capsys, *given, "--data", folder)
        assert code in (1, 2), arguments
        assert words in told, told
        for jargon in ("Traceback", "history(", "refs()", "float range", "integer range", "Errno"):
            assert jargon not in told, told


WRONG = {
    "job show ../x": "check the id",
    "model show a/b.c": "not a name",
    "tenant delete acme/keys/k1 --yes": "not a name",
    "root export-locality tiny no/such/x": "create it first",
    "domain rollback tiny v9": "take one from the history of tiny",
    "infer acme.m": "give a TEXT",
    "domain create tiny/a FILE --alpha x": "not a valid number",
    "domain grow tiny --min-count x": "not a valid whole number",
    "domain create tiny/a FILE --budget 5X": "K, M, G",
    "store scrub --rate 5X": "K, M, G",
    "model create acme.x --domain tiny": "name their file",
    "root import x /no/such": "neither a folder",
    "tenant list --url ftp://here": "is no address",
    "tenant list --url foo": "is no address",
}


def test_a_batch_without_a_terminal_tells_of_each_as_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {
        "score": "accuracy 0.9 on 40 held-out rows",
        "epochs": "5 of 9, stopped early",
        "size": "0.5 MiB",
    }
    good = Outcome("acme.one", "succeeded", seconds=3.0, figures=figures)
    bad = Outcome("zeta.two", "failed", "row 3: `label` is missing")

    def run(show: batch.Callable[[Outcome], None]) -> list[Outcome]:
        for outcome in (good, bad):
            show(outcome)
        return [good, bad]

    assert batch.run_with_bar(2, run) == ([good, bad], True)
    assert "zeta.two failed: row 3" in capsys.readouterr().err
    assert batch.summary([good, bad]) == 1
    table = capsys.readouterr().out
    for part in ("SCORE", "EPOCHS", "SIZE", "accuracy 0.9 on 40 held-out rows", "0.5 MiB", "row 3"):
        assert part in table


def test_a_command_that_there_is_not_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "by 'python -m bench'" in hmi(capsys, "bench", "plot", "--quick", code=2)
    assert "did you mean generate?" in hmi(capsys, "genrate", "acme.m", code=2)
    assert "Error: there is no command 'zzz'\n" in hmi(capsys, "zzz", code=2)
    assert "command '" not in hmi(capsys, "--hepl", code=2), "an option is none"


def test_why_a_training_stopped() -> None:
    def of(**metrics: object) -> str:
        view = {"kind": "fine_tune", "target": "a.m", "job": "j1", "result": {"metrics": metrics}}
        return "\n".join(endings.lines(view))

    assert "5 of 9, stopped early: none was better than epoch 2" in of(epochs_run=5, epochs=9, epoch=2)
    assert "9 of 9, all that were planned; epoch 9 is kept" in of(epochs_run=9, epochs=9, epoch=9)
    assert "note: few rows" in of(warnings=["few rows"])
    assert of() == "done: fine_tune a.m (job j1)\nnext: hmi infer a.m TEXT, or hmi model report a.m"


@pytest.mark.parametrize("count", [2, 15, 30])
def test_a_report_fits_in_80_columns(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"a-long-label-{i:02}" for i in range(count)]
    confused = [[3 if i == j else int(j == (i + 1) % count) for j in range(count)] for i in range(count)]
    scores = {"f1": 0.5, "precision": 0.5, "recall": 0.5, "support": 4}
    report._show(
        {
            "accuracy": 0.5,
            "per_label": dict.fromkeys(names, scores),
            "confusion": {"labels": names, "rows": confused},
        }
    )
    told = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in told.splitlines()) <= 80
    assert "ANSWER" in told
    assert click.unstyle(told) == told


def test_a_job_without_its_process_is_not_listed_as_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command killed by SIGKILL leaves its job `running`, with a lock that nobody holds."""
    data = ("--data", tmp_path / "d")
    hmi(capsys, "tenant", "create", "acme", *data)

    def killed() -> str:
        manager = Manager(Settings(data=tmp_path / "d", job_workers=0))
        job = manager.runner.submit("fine_tune", {"model": "acme.m"}, "acme").job
        manager.registry.update_job(job, lambda r: r.model_copy(update={"state": "running", "attempts": 1}))
        manager.close()
        return job

    job = killed()
    (listed,) = json.loads(hmi(capsys, "job", "list", "--json", *data))
    assert (listed["job"], listed["state"]) == (job, "queued")
    assert json.loads(hmi(capsys, "job", "cancel", job, "--json", *data))["state"] == "cancelled"
    job = killed()
    assert json.loads(hmi(capsys, "job", "show", job, "--json", *data))["state"] == "queued"
    hmi(capsys, "job", "cancel", job, *data)
    job = killed()
    assert json.loads(hmi(capsys, "job", "cancel", job, "--json", *data))["state"] == "cancelled"
    assert killed() != job, "the target is free"


def test_an_upload_that_is_refused_early_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server answers after the head and closes the connection, with most of the body unread."""
    (tmp_path / "text").write_bytes(b"word " * (8 << 20))
    heads: list[bytes] = []

    def refuse(listener: socket.socket) -> None:
        caller, _ = listener.accept()
        with caller:
            heads.append(caller.recv(1 << 16))
            body = b'{"error": {"kind": "unauthorised", "message": "this key is not known"}}'
            caller.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        told = hmi(capsys, "domain", "create", "tiny/a", tmp_path / "text", "--url", url, code=1)
        thread.join()
    assert told.endswith("error: this key is not known\n")
    assert b"content-length: 4194" in heads[0].lower(), "its size is told, not sent in chunks"
