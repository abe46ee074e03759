"""The client against a real server process: each resource, jobs to their end, uploads that break off."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import hmi
from hmi.api.routes.openapi import document
from hmi.api.routes.table import ROUTES
from hmi.api.schemas.generate import GenerateBody, TextPiece
from hmi.client import answers
from hmi.client.errors import Conflict, Forbidden, InvalidData, InvalidInput, NotFound, Unauthorised
from hmi.client.file_checks import FileCheck
from hmi.client.prompts import GenerateOptions
from tests.e2e.conftest import QUICK, mood_rows
from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, PAIRS, TAGS, ProtocolServer
from tests.tiny import random_texts

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def client(protocol_server: ProtocolServer) -> Iterator[hmi.Client]:
    with hmi.Client(protocol_server.url, protocol_server.key) as client:
        yield client


@pytest.fixture(scope="module")
def admin(protocol_server: ProtocolServer) -> Iterator[hmi.Client]:
    with hmi.Client(protocol_server.url, protocol_server.admin_key) as client:
        yield client


@pytest.fixture
async def acting(protocol_server: ProtocolServer) -> AsyncIterator[hmi.AsyncClient]:
    async with hmi.AsyncClient(protocol_server.url, protocol_server.key) as client:
        yield client


def test_one_text_gives_one_answer_and_a_list_a_list(client: hmi.Client, protocol_server: Any) -> None:
    texts = random_texts(5, seed=3)
    judged = protocol_server.native(MOOD, texts)["outputs"]
    one, many = client.infer(MOOD, texts[0]), client.infer(MOOD, texts)
    assert (one.label, one.model, one.version, one.index) == (judged[0]["label"], MOOD, 2, 0)
    assert [(p.label, p.index) for p in many] == [(o["label"], i) for i, o in enumerate(judged)]
    assert client.infer(MOOD, []) == []


def test_each_task_has_its_form(client: hmi.Client) -> None:
    pair = client.infer(PAIRS, ("the cell", "the gene"))
    assert pair.label in ("same", "other")
    tags = client.infer(TAGS, [["cell", "price"], {"tokens": ["gene"]}])
    assert [len(p.tags or ()) for p in tags] == [2, 1]
    assert len(client.infer(EMBED, "the cell").embedding or ()) == 32
    scores = client.infer(MOOD, {"text": "good"}, returns=["scores"], calibrated=True).scores
    assert set(scores or ()) == {"pos", "neg"}
    whole = client.call(MOOD, ["good"], returns=["provenance"], exact=True)
    assert whole.provenance is not None
    assert whole.provenance["exact"]
    assert "total_ms" in whole.timing
    mixed = client.infer_mixed([(MOOD, ["good"]), (PAIRS, [("a", "b")])])
    assert [a.model for a in mixed] == [MOOD, PAIRS]


def test_ten_thousand_texts_over_http(client: hmi.Client) -> None:
    texts = [f"{'good' if i % 2 else 'bad'} film {i}" for i in range(10_000)]
    found = client.infer(MOOD, iter(texts))
    assert len(found) == len(texts)
    alone = client.infer(MOOD, texts[9_999])
    assert found[9_999].label == alone.label


async def test_many_tasks_share_an_asynchronous_client(acting: hmi.AsyncClient) -> None:
    texts = random_texts(20, seed=9)
    together = await asyncio.gather(*(acting.infer(MOOD, text) for text in texts))
    assert [p.label for p in together] == [p.label for p in await acting.infer(MOOD, texts)]
    assert [model.model async for model in acting.models.list(limit=2)] == sorted([EMBED, MOOD])
    assert await acting.ready()


def test_errors_are_those_of_the_server(client: hmi.Client, protocol_server: ProtocolServer) -> None:
    with pytest.raises(NotFound):
        client.models.get(OTHERS)
    with pytest.raises(NotFound):
        client.infer(OTHERS, "good")
    with pytest.raises(Forbidden):
        client.stats()
    with pytest.raises(InvalidInput) as caught:
        client.infer(MOOD, ["good", " "])
    assert caught.value.details["field"] == "inputs[1]"
    with hmi.Client(protocol_server.url, "no-key") as stranger, pytest.raises(Unauthorised) as refused:
        stranger.tenants.list()
    assert refused.value.request_id


def test_tenants_and_keys(admin: hmi.Client, protocol_server: ProtocolServer) -> None:
    made = admin.tenants.create("client-t", weight=2.0)
    assert [t.weight for t in admin.tenants.list() if t.tenant == "client-t"] == [2.0]
    assert admin.tenants.set("client-t", weight=1.5, limits={"models": 2}).limits["models"] == 2
    assert (admin.tenants.get("client-t").quota["models"] or {})["left"] == 2
    with pytest.raises(Conflict):
        admin.tenants.create("client-t")
    with hmi.Client(protocol_server.url, made.key) as theirs:
        issued = theirs.keys.create("client-t", ["infer"])
        assert {key.key_id for key in theirs.keys.list("client-t")} == {made.key_id, issued.key_id}
        rotated = theirs.keys.rotate("client-t", issued.key_id, overlap_s=60)
        assert (rotated.replaces, rotated.scopes) == (issued.key_id, ["infer"])
        theirs.keys.revoke("client-t", rotated.key_id)
        assert theirs.tenants.usage("client-t").requests == 0
    assert admin.tenants.delete("client-t").tenant == "client-t"


def test_files_are_kept_for_jobs(client: hmi.Client, tmp_path: Path) -> None:
    file = tmp_path / 'rows "one".jsonl'
    file.write_bytes(mood_rows(21, 2000))
    kept = client.files.upload(file)
    assert kept.bytes == file.stat().st_size, "it is sent compressed, and kept as it was"
    assert client.files.get(kept.id).filename == kept.filename
    assert kept.id in {found.id for found in client.files.list()}
    assert client.files.content(kept.id) == file.read_bytes()
    client.files.delete(kept.id)
    with pytest.raises(NotFound):
        client.files.get(kept.id)


def test_entities_of_raw_text(client: hmi.Client) -> None:
    (found,) = client.infer(TAGS, ["the cell rises"], aggregation="none")
    assert all("the cell rises"[e.start : e.end] == e.text for e in found.entities or [])
    assert found.entities is not None


def test_roots_domains_and_figures(admin: hmi.Client, client: hmi.Client) -> None:
    assert [root.root for root in client.roots.list()] == ["tiny"]
    assert {d.domain for d in client.domains.list()} >= {"tiny", "tiny/full", "tiny/half"}
    domain = client.domains.get("tiny/half")
    assert domain.versions[0].version == domain.current
    assert admin.domains.record_misses("tiny/half", True).record_misses
    admin.domains.record_misses("tiny/half", False)
    assert admin.stats().counts["roots"] == 1
    assert admin.request("GET", "/manage/jobs", query={"limit": "1"})["jobs"]


def test_from_a_data_frame_to_a_model_and_back(client: hmi.Client, capsys: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (make setup brings it)")
    rows = [json.loads(line) for line in mood_rows(11).splitlines()]
    frame = pandas.DataFrame([{**row, "note": None} for row in rows])
    module = {"kind": "lora", "rank": 2, "sites": ["q", "v"]}
    options = {"epochs": 1, "ramps": False, "module": module}
    job = client.models.create("acme.made", frame, domain="tiny/half", options=options)
    status = job.wait()
    assert status.result is not None
    assert "fine-tuning" in capsys.readouterr().err, "without a terminal, each phase is a line"
    assert client.jobs.get(job.id).state == "succeeded"
    model = client.models.get("acme.made")
    assert (model.current, sorted(model.labels)) == (1, ["neg", "pos"])
    bounded = client.models.set_objective("acme.made", agreement=0.9)
    assert bounded.objective.agreement == 0.9
    assert client.models.exits("acme.made").state == "no ramps"
    prediction = client.infer("acme.made", "good film")
    assert client.models.feedback("acme.made", [(prediction, "pos")]).unknown == 1
    assert client.models.export_adapter("acme.made").files
    assert client.models.rollback("acme.made", 1).current == 1
    client.models.delete("acme.made")
    with pytest.raises(NotFound):
        client.models.get("acme.made")


async def test_a_job_is_cancelled(acting: hmi.AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(mood_rows(12, 4000)))
    job = await acting.models.create("acme.long", file, domain="tiny/half", options={"epochs": 200})
    states = []
    async for status in job.events():
        states.append(status.state)
        if len(states) == 1:
            await job.cancel()
    assert states[-1] == "cancelled"
    with pytest.raises(hmi.ApiError, match="cancelled"):
        await job.wait(progress=False)


def test_bad_rows_are_refused_at_once(client: hmi.Client) -> None:
    with pytest.raises(InvalidData) as caught:
        client.models.create("acme.bad", [{"text": "a", "label": "b"}, {"nothing": 1}], domain="tiny")
    assert caught.value.details["field"] == "data"
    with pytest.raises(InvalidInput, match=r"no\.jsonl cannot be read"):
        client.models.create("acme.bad", "no.jsonl", domain="tiny")


async def test_a_file_is_checked_and_read_by_names(client: hmi.Client, acting: hmi.AsyncClient) -> None:
    rows = [{"what": "ab"[i % 2], "said": f"this is the row {i}"} for i in range(8)]
    seen = client.models.check(rows)
    assert (seen.usable, seen.task, seen.options) == (
        False,
        "classification",
        {"text_column": "said", "label_column": "what"},
    )
    again = await acting.models.check(rows, options=seen.options)
    assert (again.usable, again.labels, again.count) == (True, {"a": 4, "b": 4}, 8)
    with pytest.raises(InvalidData, match="`text` is missing"):
        client.models.create("acme.named", rows, domain="tiny")


def test_an_upload_that_breaks_off_leaves_nothing(client: hmi.Client) -> None:
    def cut() -> Iterator[bytes]:
        yield mood_rows(13, 5000)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        client.models.create("acme.cut", cut(), domain="tiny/half")
    assert not [job for job in client.jobs.list() if job.target == "acme.cut"]
    assert client.ready()


def test_the_same_key_creates_once(client: hmi.Client) -> None:
    held = io.BytesIO(mood_rows(14)).getvalue()
    options = {**QUICK, "epochs": 1, "ramps": False}
    jobs = [
        client.models.create("acme.once", held, domain="tiny/half", options=options, once="once-1")
        for _ in range(2)
    ]
    assert jobs[0].id == jobs[1].id
    jobs[0].cancel()


def test_the_example_runs(protocol_server: ProtocolServer) -> None:
    given = {"HMI_URL": protocol_server.url, "HMI_KEY": protocol_server.key, "HMI_DOMAIN": "tiny/half"}
    done = subprocess.run(
        [sys.executable, str(REPO / "examples" / "quickstart.py")],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("acme.quickstart, version 1: labels delivery, refund")
    assert said[1] in ("delivery", "refund")
    assert said[-1].startswith("not_found: ")


def test_the_answers_have_every_field_of_the_contract() -> None:
    schemas = document(ROUTES)["components"]["schemas"]
    pairs = {
        "JobView": answers.JobStatus,
        "TenantView": answers.Tenant,
        "TenantCreated": answers.NewTenant,
        "KeyView": answers.Key,
        "KeyCreated": answers.NewKey,
        "RootView": answers.Root,
        "DomainView": answers.Domain,
        "DomainVersionView": answers.DomainVersion,
        "ModelView": answers.Model,
        "ModelVersion": answers.ModelVersion,
        "ExitsView": answers.Exits,
        "CascadeView": answers.Cascade,
        "TokensView": answers.TokenProfile,
        "ModuleExport": answers.Adapter,
        "CheckView": FileCheck,
        "UsageView": answers.Usage,
        "StatsView": answers.Stats,
        "Progress": answers.Progress,
        "Objective": answers.Objective,
        "FeedbackTaken": answers.FeedbackTaken,
        "Output": answers.Prediction,
        "WordOrder": answers.Word,
        "EntityOutput": answers.Entity,
        "GenerateAnswer": answers.GeneratedText,
        "WrittenTokens": answers.TokenUsage,
        "TokenLogprob": answers.TokenLogprob,
        "TopToken": answers.TopToken,
        "ChoiceProbability": answers.ChoiceProbability,
    }
    missing = {
        name: lacks
        for name, model in pairs.items()
        if (lacks := set(schemas[name]["properties"]) - set(model.model_fields))
    }
    assert not missing
    # No answer refers to the data of an event, and options of a call are no answer.
    assert set(TextPiece.model_fields) == set(answers.TextPiece.model_fields)
    chosen = set(GenerateBody.model_fields) - {"prompt", "messages", "stream"}
    assert chosen == set(GenerateOptions.__annotations__)
