"""The `openai` package, unmodified: files, and fine-tuning from an upload to an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import mood_rows
from tests.e2e.protocols.protocol_lab import MOOD, ProtocolServer
from tests.e2e.protocols.test_openai_client import client_of

QUICK = {"options": {"module": {"kind": "lora", "rank": 2}, "ramps": False, "max_length": 32, "lr": 0.01}}


@pytest.fixture
def client(protocol_server: ProtocolServer) -> Iterator[openai.OpenAI]:
    with client_of(protocol_server) as client:
        yield client


def chats(rows: bytes) -> bytes:
    """Rows as chats, whose last message is the label."""
    found = [json.loads(line) for line in rows.splitlines()]
    return "\n".join(
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": "Say pos or neg."},
                    {"role": "user", "content": row["text"]},
                    {"role": "assistant", "content": row["label"]},
                ]
            }
        )
        for row in found
    ).encode()


def ended(client: openai.OpenAI, job: str) -> Any:
    """Wait until a job has ended, and return it."""
    while (found := client.fine_tuning.jobs.retrieve(job)).status not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.2)
    return found


def test_from_a_file_to_an_answer(protocol_server: ProtocolServer, client: openai.OpenAI) -> None:
    rows = chats(mood_rows(7))
    file = client.files.create(file=("mood.jsonl", rows), purpose="fine-tune")
    assert (file.filename, file.bytes, file.status) == ("mood.jsonl", len(rows), "processed")
    assert client.files.wait_for_processing(file.id).id == file.id
    job = client.fine_tuning.jobs.create(
        model="tiny/full",
        training_file=file.id,
        suffix="feeling",
        seed=3,
        metadata={"why": "a test"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": "auto"}},
        },
        extra_body=QUICK,
    )
    assert (job.model, job.training_file, job.fine_tuned_model) == ("tiny/full", file.id, None)
    assert (job.seed, job.metadata, job.hyperparameters.n_epochs) == (3, {"why": "a test"}, 3)
    client.files.delete(file.id)  # the job has its own copy
    done = ended(client, job.id)
    assert done.status == "succeeded", done.error
    assert (done.fine_tuned_model, done.organization_id) == ("acme.feeling", "acme")
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=2))
    assert events[-1].message == f"Created fine-tuning job: {job.id}"
    assert events[0].message == "The job has successfully completed"
    assert len({event.id for event in events}) == len(events) >= 3, "all pages were read"
    assert list(client.fine_tuning.jobs.checkpoints.list(job.id)) == []
    assert job.id in [found.id for found in client.fine_tuning.jobs.list(limit=1)]
    answer = protocol_server.native("acme.feeling", ["the market is good", "cell gene bad"])
    assert {output["label"] for output in answer["outputs"]} <= {"pos", "neg"}
    assert client.models.delete("acme.feeling").deleted
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme.feeling")


def test_a_job_is_cancelled(client: openai.OpenAI) -> None:
    file = client.files.create(file=("rows.jsonl", mood_rows(8)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model=MOOD, training_file=file.id, suffix="cancelled", hyperparameters={"n_epochs": 200}
    )
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    assert ended(client, job.id).fine_tuned_model is None
    deadline = time.monotonic() + 60
    while "cancelled" not in (found := client.fine_tuning.jobs.list_events(job.id).data[0]).message:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.cancel(job.id)


@pytest.mark.parametrize(
    ("given", "status", "param", "says"),
    [
        ({"training_file": "file-0"}, 404, "training_file", "no file"),
        ({"training_file": "../../etc/passwd"}, 404, "training_file", "no file"),
        ({"validation_file": "file-0"}, 404, "validation_file", "no file"),
        ({"model": "gpt-4o-mini"}, 404, "model", "gpt-4o-mini"),
        ({"model": "globex.mood"}, 404, "model", "no model"),
        ({"suffix": "globex.mine"}, 404, "suffix", "no tenant"),
        ({"suffix": "Not A Name"}, 400, "suffix", "is not a name"),
        ({"suffix": "mood"}, 409, "model", "exists already"),
        ({"method": {"type": "dpo"}}, 400, "method.type", "supervised"),
        ({"hyperparameters": {"learning_rate_multiplier": 2}}, 400, "learning_rate_multiplier", "options.lr"),
        ({"integrations": [{"type": "wandb"}]}, 413, "integrations", "0 items"),
        ({"extra_body": {"task": "pair"}}, 400, "training_file", "text_pair"),
    ],
)
def test_what_cannot_be_trained_says_why(
    client: openai.OpenAI, given: dict[str, Any], status: int, param: str, says: str
) -> None:
    file = client.files.create(file=("rows.jsonl", mood_rows(8)), purpose="fine-tune")
    with pytest.raises(openai.APIStatusError) as caught:
        client.fine_tuning.jobs.create(**{"model": "tiny/full", "training_file": file.id, **given})
    assert (caught.value.status_code, caught.value.param) == (status, param)
    assert says in caught.value.message
    client.files.delete(file.id)


def test_files_are_kept_listed_read_and_deleted(client: openai.OpenAI) -> None:
    made = [
        client.files.create(file=(f"{i}.jsonl", f"row {i}".encode()), purpose="fine-tune") for i in range(3)
    ]
    ids = [file.id for file in made]
    assert [file.id for file in client.files.list(limit=2) if file.id in ids] == ids[::-1], "newest first"
    assert [file.id for file in client.files.list(order="asc") if file.id in ids] == ids
    assert client.files.retrieve(ids[1]).filename == "1.jsonl"
    assert client.files.content(ids[1]).read() == b"row 1"
    assert client.files.delete(ids[1]).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(ids[1])
    for file in (ids[0], ids[2]):
        client.files.delete(file)


def test_an_upload_that_is_repeated_makes_one_file(client: openai.OpenAI) -> None:
    key = {"Idempotency-Key": "once"}
    first, second = (
        client.files.create(file=("a.jsonl", b"row"), purpose="fine-tune", extra_headers=key)
        for _ in range(2)
    )
    assert first.id == second.id
    client.files.delete(first.id)


def test_tenants_do_not_see_each_others_files_and_jobs(
    protocol_server: ProtocolServer, client: openai.OpenAI
) -> None:
    file = client.files.create(file=("rows.jsonl", mood_rows(8)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="tiny/full", training_file=file.id, suffix="hidden")
    client.fine_tuning.jobs.cancel(job.id)
    with client_of(protocol_server, protocol_server.other_key) as other:
        assert file.id not in [found.id for found in other.files.list()]
        assert job.id not in [found.id for found in other.fine_tuning.jobs.list()]
        for call, name in (
            (other.files.retrieve, file.id),
            (other.files.content, file.id),
            (other.files.delete, file.id),
            (other.fine_tuning.jobs.retrieve, job.id),
            (other.fine_tuning.jobs.cancel, job.id),
            (other.fine_tuning.jobs.list_events, job.id),
            (other.fine_tuning.jobs.checkpoints.list, job.id),
        ):
            with pytest.raises(openai.NotFoundError):
                call(name)  # type: ignore[operator]
        with pytest.raises(openai.NotFoundError):
            other.fine_tuning.jobs.create(model="tiny/full", training_file=file.id)
    with client_of(protocol_server, protocol_server.infer_key) as reader:
        with pytest.raises(openai.PermissionDeniedError):
            reader.files.list()
    with client_of(protocol_server, protocol_server.admin_key) as admin:
        assert admin.files.retrieve(file.id).id == file.id
        assert file.id not in [found.id for found in admin.files.list()], "the administrators' own are listed"
        with pytest.raises(openai.BadRequestError, match=r"give tenant\.model"):
            admin.fine_tuning.jobs.create(model="tiny/full", training_file=file.id)
    client.files.delete(file.id)


def test_an_upload_names_what_is_wrong(protocol_server: ProtocolServer) -> None:
    headers = {"Authorization": f"Bearer {protocol_server.key}"}
    file = {"file": ("a.jsonl", b"row")}
    with httpx.Client(base_url=f"{protocol_server.url}/v1", headers=headers) as http:
        for given, status, param in (
            ({"files": file, "data": {"purpose": "assistants"}}, 400, "purpose"),
            ({"files": file}, 400, "purpose"),
            ({"files": {"purpose": (None, "fine-tune")}}, 400, "file"),
            ({"files": file, "data": {"purpose": "fine-tune", "spec": "{}"}}, 400, "spec"),
            ({"json": {"purpose": "fine-tune"}}, 400, None),
        ):
            answer = http.post("/files", **given)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
