"""Onboarding from a table: killed, continued, repeated, with a failure in between; and on a busy server."""

from __future__ import annotations

import csv
import json
import os
import signal
import stat
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hmi.cli.framework.client import HttpClient
from hmi.cli.tenants.batch import SHOWN, worth_a_look
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.cli.tenants.onboarding import ModelEntry, Onboarding
from hmi.cli.tenants.plans import read_onboarding
from hmi.errors import InvalidInput
from tests.forks import run_hmi
from tests.hmi.labs.api_world import hmi, rows
from tests.waiting import wait_until

OPTIONS = {"epochs": 1, "ramps": False, "max_length": 32, "module": {"kind": "lora", "rank": 2}}
INLINE = [json.loads(line) for line in rows(12).splitlines()]


def line(tenant: str, **more: Any) -> dict[str, Any]:
    row = {"tenant": tenant, "model": "m", "domain": "tiny", "task": "classification", "rows": INLINE}
    return {**row, "options": OPTIONS, **more}


def test_a_killed_run_continues_and_a_further_one_changes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.jsonl"
    table = [line("bulk-1", limits={"models": 3}), line("bulk-2"), line("bad", rows=[{"text": "no label"}])]
    plan.write_text("".join(json.dumps(row) + "\n" for row in table))
    state, keys, report = (
        tmp_path / name for name in ("plan.jsonl.state.jsonl", "plan.jsonl.keys.jsonl", "r.csv")
    )
    command = [
        "tenant",
        "onboard",
        str(plan),
        "--data",
        str(folder),
        "--parallel",
        "1",
        "--report",
        str(report),
    ]
    process = run_hmi(command, tmp_path / "log")
    wait_until(lambda: state.exists() and state.stat().st_size, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with state.open("ab") as file:  # a kill may cut a line off
        file.write(b'{"id": "bulk-2.m", "sta')
    hmi(capsys, *command, code=1)
    capsys.readouterr()
    again = hmi(capsys, *command, code=1)
    assert "0 made, 2 unchanged, 1 failed" in again
    assert "bad.m failed: " in again
    with report.open() as file:
        found = list(csv.DictReader(file))
    assert [row["state"] for row in found] == ["failed", "succeeded", "succeeded"]
    assert all(0 <= float(row["score"]) <= 1 for row in found[1:])
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert Counter(json.loads(x)["tenant"] for x in keys.read_text().splitlines()) == Counter(
        ["bulk-1", "bulk-2", "bad"]
    )
    models = json.loads(hmi(capsys, "model", "list", "--json", "--data", folder))
    assert {m["model"]: len(m["versions"]) for m in models if m["model"].startswith("bulk")} == {
        "bulk-1.m": 1,
        "bulk-2.m": 1,
    }
    shown = json.loads(hmi(capsys, "tenant", "list", "--json", "--data", folder))
    assert {t["tenant"]: t["limits"]["models"] for t in shown}["bulk-1"] == 3
    os.unlink(state)
    plan.write_text("".join(json.dumps(row) + "\n" for row in table[:2]))
    hmi(capsys, *command)
    assert "nothing was changed" in hmi_notes(capsys, *command)


def test_tenants_of_a_language_model_are_onboarded(
    writing_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [{"prompt": f"the {i} film:", "completion": f" good {i % 3}"} for i in range(16)]
    user = {"role": "user", "content": "the film"}
    chats = [
        {"messages": [{**user, "content": f"the {i}"}, {"role": "assistant", "content": "good"}]}
        for i in range(16)
    ]
    writes = {"domain": "tiny/news", "task": "generation", "options": {"epochs": 1}}
    table = [
        line("bulk-1", rows=prompts, **writes),
        line("bulk-2", data="chats.jsonl", **writes),
        line("bulk-3", rows=[{"messages": [user]}] * 4, **writes),
        line("bulk-4", rows=prompts, **{**writes, "task": "classification"}),
    ]
    del table[1]["rows"]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    plan, report = tmp_path / "plan.jsonl", tmp_path / "report.json"
    plan.write_text("\n".join(map(json.dumps, table)))
    data = ("--data", writing_data)
    command = ("tenant", "onboard", plan, *data, "--report", report, "--parallel", 2)
    said = hmi(capsys, *command, code=1)
    assert "2 made, 0 unchanged, 2 failed" in said
    assert "bulk-3.m failed: 4 of 4 rows of data are not usable: line 1: the last of `messages`" in said
    assert "bulk-4.m failed: root tiny is a language model" in said
    found = json.loads(report.read_text())
    assert [one["state"] for one in found] == ["failed", "failed", "succeeded", "succeeded"]
    assert {one["metric"] for one in found[2:]} == {"perplexity"}
    assert found[2]["score"] >= found[3]["score"], "the worst first"
    for model in ("bulk-1.m", "bulk-2.m"):
        answer = json.loads(hmi(capsys, "generate", model, "the 5 film:", "--json", "--max-tokens", 4, *data))
        assert answer["usage"]["written_tokens"] > 0
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["gene", 3]}')
    for given, may in (
        (("--choices", "gene,cell"), {"gene", "cell"}),
        (("--choices", " gene, cell"), {" gene", " cell"}),
        (("--regex", "[0-9]{2}"), {f"{i:02}" for i in range(100)}),
        (("--schema", schema), {'"gene"', "3"}),
    ):
        said = hmi(capsys, "generate", "bulk-1.m", "the 5 film:", *given, *data)
        assert said.removesuffix("\n") in may
    schema.write_text("{")
    said = hmi(capsys, "generate", "bulk-1.m", "the", "--schema", schema, *data, code=1)
    assert "is no JSON" in said
    said = hmi(capsys, "generate", "bulk-1.m", "the", "--choices", "gene, cell", *data, code=1)
    assert "some begin with a space" in said
    plan.write_text("\n".join(map(json.dumps, table[:2])))
    assert "nothing was changed" in hmi_notes(capsys, *map(str, command))


def hmi_notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command, which must succeed, and return what it writes to stderr."""
    from hmi.cli import main

    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 0
    return capsys.readouterr().err


class Busy(BaseHTTPRequestHandler):
    """Answers each call with 429 or 503 first, and asks for a second of patience."""

    seen: Counter[str] = Counter()  # noqa: RUF012  # one for the test that uses it

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = f"{self.command} {self.path} {self.headers.get('Idempotency-Key')}"
        self.seen[name] += 1
        if self.seen[name] < 3:
            kind = "quota_exceeded" if self.seen[name] == 1 else "unavailable"
            self.send(429 if self.seen[name] == 1 else 503, {"error": {"kind": kind, "message": "busy"}})
        elif self.command == "GET" and "/jobs/" in self.path:
            result = {"metrics": {"accuracy": 0.5, "rows": 4}, "bytes": 1}
            self.send(200, {"job": "j1", "kind": "fine_tune", "state": "succeeded", "result": result})
        elif self.command == "GET":
            self.send(404, {"error": {"kind": "not_found", "message": "no such model"}})
        else:
            self.send(201, {"tenant": "acme", "key": "hmi_k", "key_id": "k1", "job": "j1"})

    def send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815  # the base class's names

    def log_message(self, *_: object) -> None:
        pass


def test_a_busy_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("hmi.cli.framework.client.time.sleep", waits.append)
    entry = ModelEntry("acme", "m", "tiny", "classification", rows=rows(4))
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = HttpClient(f"http://127.0.0.1:{server.server_port}", patience_s=600.0)
        state = State(tmp_path / "state", tmp_path / "keys")
        (outcome,) = Onboarding(client, state).run([entry], lambda _: None)
        server.shutdown()
    assert (outcome.state, outcome.score, outcome.rows) == ("succeeded", 0.5, 4)
    assert set(Busy.seen.values()) == {3}, "each call came again until it was answered"
    assert min(waits) >= 1.0, "not before Retry-After"
    assert sum(name.startswith("POST") for name in Busy.seen) == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": "x.jsonl"}, "both"),
        ({"rows": "text"}, "rows is not JSON"),
        ({"rows": []}, "list of objects"),
        ({"models": "many"}, "models"),
        ({"limits": "[1]"}, "object"),
        ({"limit": 1}, "unknown field 'limit'"),
        ({"encoding": "klingon"}, "plan.json row 1: options.encoding: .* is no encoding"),
        ({"labels": "[1"}, "plan.json row 1: labels is not JSON"),
        ({"header": "maybe"}, "header is not JSON"),
    ],
)
def test_what_a_table_may_not_hold_is_named(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps([line("acme", **changes)]))
    with pytest.raises(InvalidInput, match=told):
        read_onboarding(tmp_path / "plan.json")


def test_rows_and_limits_may_stand_in_a_csv_table(tmp_path: Path) -> None:
    with (tmp_path / "plan.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["tenant", "model", "domain", "task", "rows", "models", "weight"])
        table.writerow(["acme", "m", "tiny", "pair", json.dumps(INLINE, indent=1), "5", "2.5"])
        table.writerow(["zeta", "e", "tiny", "embedding", "", "", ""])
    first, second = read_onboarding(tmp_path / "plan.csv")
    assert first.rows == b"".join(json.dumps(row).encode() + b"\n" for row in INLINE)
    assert first.settings == {"weight": 2.5, "limits": {"models": 5}}
    assert (second.data, second.rows, second.settings) == (None, None, {})


def test_a_table_says_how_to_read_the_files(tmp_path: Path) -> None:
    (tmp_path / "strange").write_text("")
    given = {
        "text_column": '["2", "3"]',
        "label_column": "1",
        "labels": "1=World, 2=Sports",
        "header": "FALSE",
    }
    with (tmp_path / "plan.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["tenant", "model", "domain", "task", "data", "options", *given])
        table.writeheader()
        row = {"tenant": "acme", "model": "m", "domain": "tiny", "task": "classification", "data": "strange"}
        table.writerow({**row, "options": '{"epochs": 1}', **given})
    (entry,) = read_onboarding(tmp_path / "plan.csv")
    names = {
        "text_column": ["2", "3"],
        "label_column": "1",
        "labels": ["1=World", "2=Sports"],
        "header": False,
    }
    assert entry.options == {"epochs": 1, **names}
    listed = line("acme", text_column="said", labels=["no", "yes"])
    (tmp_path / "plan.json").write_text(json.dumps([listed]))
    (entry,) = read_onboarding(tmp_path / "plan.json")
    assert {name: entry.options[name] for name in ("text_column", "labels")} == {
        "text_column": "said",
        "labels": ["no", "yes"],
    }


def test_a_summary_shows_failures_and_the_worst_scores() -> None:
    outcomes = [Outcome(f"t{i}.m", "succeeded", score=i / 100) for i in range(90, 0, -1)]
    outcomes.append(Outcome("bad.m", "failed", "why"))
    shown = worth_a_look(outcomes)
    assert [o.id for o in shown] == ["bad.m", *(f"t{i}.m" for i in range(1, SHOWN))]
    written = [
        Outcome(f"w{i}.m", "succeeded", metric="perplexity", score=1.0 + 0.005 * i) for i in range(90, 0, -1)
    ]
    shown = worth_a_look(written)
    assert [o.id for o in shown] == [f"w{i}.m" for i in range(90, 90 - SHOWN, -1)], "less perplexed is better"
    assert worth_a_look([*outcomes, *written])[1].id == "t1.m", "a good perplexity is no low score"


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"acme.m": {"state": "succeeded"}}\n')
    with pytest.raises(InvalidInput, match="was not written by this command"):
        State(tmp_path / "state")
