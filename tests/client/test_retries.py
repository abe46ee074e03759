"""The client's repetition of calls, against a server that refuses, breaks off and is slow."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import threading
from typing import Any

import pytest
import zstandard

import hmi
from hmi.client.errors import (
    ApiError,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    TooLarge,
    Unavailable,
    Unreachable,
)
from hmi.errors import NotFound as HmiNotFound
from tests.client.scripted_server import Said, Script, Sent, error, scripted

TENANT = {"tenant": "acme", "created": "now", "weight": 1.0}


def answered(request: Sent, at: int = 0) -> Said:
    """An answer to infer: each text is its own label."""
    texts = request.json["inputs"]
    outputs = [{"label": text if isinstance(text, str) else json.dumps(text)} for text in texts]
    body = {"id": f"a{at}", "model": "acme.m", "version": 3, "outputs": outputs, "timing": {"total_ms": 1}}
    return Said(body=body)


def refusing(first: int, said: Said, then: Script = lambda r, n: Said(body={"tenants": [TENANT]})) -> Script:
    return lambda request, at: said if at < first else then(request, at)


def test_a_refused_call_is_sent_again_after_the_time_that_the_server_names() -> None:
    busy = error(503, "unavailable", retry_after="0.2")
    with scripted(refusing(2, busy)) as server, hmi.Client(server.url) as client:
        waits: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hmi.client.sync.io.time.sleep", waits.append)
            assert [t.tenant for t in client.tenants.list()] == ["acme"]
    assert len(server.sent) == 3
    assert len(waits) == 2
    assert min(waits) >= 0.2


@pytest.mark.parametrize("call", ["rollback", "delete", "create"])
def test_a_creation_whose_answer_is_lost_is_repeated_with_the_same_key(call: str) -> None:
    lost = Said(None)
    with scripted(refusing(1, lost, lambda r, n: Said(body={"job": "j1"}))) as server:
        with hmi.Client(server.url) as client:
            if call == "delete":
                with pytest.raises(Unreachable) as caught:
                    client.tenants.delete("acme")
                assert caught.value.sent
            elif call == "rollback":
                with pytest.raises(ApiError, match="form"):  # the answer is no model, but it came
                    client.models.rollback("acme.m", 2)
            else:
                job = client.models.create("acme.m", [{"text": "a", "label": "b"}], domain="minilm")
                assert job.id == "j1"
    assert len(server.sent) == (1 if call == "delete" else 2)
    keys = [request.headers.get("idempotency-key") for request in server.sent]
    assert len(set(keys)) == 1
    assert (keys[0] is not None) == (call == "create")


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    broken = Said(200, {"tenants": []}, cut=True)
    with scripted(refusing(1, broken)) as server, hmi.Client(server.url) as client:
        assert len(client.tenants.list()) == 1
    assert len(server.sent) == 2


def test_errors_have_the_servers_kind_message_details_and_id() -> None:
    with scripted(lambda r, n: error(404, "not_found", model="acme.x")) as server:
        with hmi.Client(server.url) as client, pytest.raises(NotFound) as caught:
            client.models.get("acme.x")
    found = caught.value
    assert isinstance(found, HmiNotFound)
    assert (found.kind, found.message, found.status, found.request_id) == (
        "not_found",
        "it is not_found",
        404,
        "r-1",
    )
    assert found.details == {"model": "acme.x"}
    assert len(server.sent) == 1


def test_the_answer_of_a_proxy_and_a_new_kind_become_errors_too() -> None:
    script = lambda r, n: Said(429, b"<html>slow</html>") if n == 0 else error(422, "too_green")  # noqa: E731
    with scripted(script) as server, hmi.Client(server.url, attempts=1) as client:
        with pytest.raises(QuotaExceeded, match="slow"):
            client.tenants.list()
        with pytest.raises(InvalidInput) as caught:
            client.tenants.list()
    assert caught.value.kind == "too_green"


def test_the_last_error_is_raised_when_the_time_is_up() -> None:
    busy = error(503, "unavailable", retry_after="30")
    with scripted(lambda r, n: busy) as server, hmi.Client(server.url, timeout_s=5) as client:
        with pytest.raises(Unavailable) as caught:
            client.tenants.list()
    assert caught.value.retry_after == 30
    assert len(server.sent) == 1  # waiting for 30 seconds would exceed the budget


def test_a_repeated_call_has_only_what_is_left_of_its_deadline() -> None:
    busy = error(503, "unavailable")
    with scripted(refusing(1, busy, answered)) as server, hmi.Client(server.url) as client:
        client.infer("acme.m", "hello", deadline_ms=60_000)
        first, second = (request.json["parameters"]["deadline_ms"] for request in server.sent)
        assert first == 60_000
        assert 0 < second < first
    with scripted(lambda r, n: busy) as server, hmi.Client(server.url) as client:
        with pytest.raises(DeadlineExceeded):
            client.infer("acme.m", "hello", deadline_ms=10)


def test_nobody_there_is_unreachable_and_was_not_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with hmi.Client(url, attempts=2) as client, pytest.raises(Unreachable) as caught:
            client.tenants.delete("acme")
    assert not caught.value.sent


def test_ten_thousand_texts_become_batches_in_order() -> None:
    texts = [f"text {i}" for i in range(10_000)]
    with scripted(answered) as server, hmi.Client(server.url, concurrency=3) as client:
        found = client.infer("acme.m", (text for text in texts))
    assert [p.label for p in found] == texts
    assert max(len(r.json["inputs"]) for r in server.sent) == 256
    assert {p.answer_id for p in found} == {f"a{i}" for i in range(len(server.sent))}


def test_endless_inputs_are_read_as_answers_are_taken() -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield f"text {read}"

    with scripted(answered) as server, hmi.Client(server.url, batch=10, concurrency=2) as client:
        answers = client.infer_iter("acme.m", endless())
        assert [next(answers).label for _ in range(25)] == [f"text {i}" for i in range(1, 26)]
        answers.close()
    assert read <= 60


def test_a_batch_that_is_too_large_is_halved_and_an_input_is_not() -> None:
    def script(request: Sent, at: int) -> Said:
        inputs = request.json["inputs"]
        if len(inputs) > 3:
            return error(413, "too_large", field="inputs", limit=3)
        if "long" in inputs:
            return error(413, "too_large", field="inputs[0].text")
        return answered(request, at)

    with scripted(script) as server, hmi.Client(server.url, concurrency=1, batch=8) as client:
        texts = [str(i) for i in range(20)]
        assert [p.label for p in client.infer("acme.m", texts)] == texts
        with pytest.raises(TooLarge) as caught:
            client.infer("acme.m", [*texts[:16], "long"])
    assert caught.value.details["first_input"] == 16
    assert "input 16 of all" in caught.value.__notes__[0]


async def test_a_cancelled_task_cancels_its_calls() -> None:
    arrived, let_go = threading.Event(), threading.Event()

    def script(request: Sent, at: int) -> Said:
        arrived.set()
        let_go.wait(30)
        return answered(request, at)

    with scripted(script) as server:
        try:
            async with hmi.AsyncClient(server.url, concurrency=2, batch=1) as client:
                task = asyncio.create_task(client.infer("acme.m", [str(i) for i in range(100)]))
                await asyncio.to_thread(arrived.wait, 30)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                others = asyncio.all_tasks() - {asyncio.current_task()}
                assert not [t for t in others if "run" in repr(t.get_coro())]
        finally:
            let_go.set()
    assert len(server.sent) <= 2


async def test_the_asynchronous_client_repeats_and_batches_alike() -> None:
    with scripted(refusing(1, error(503, "unavailable"), answered)) as server:
        async with hmi.AsyncClient(server.url, batch=10) as client:
            one = await client.infer("acme.m", ("a", "b"))
            many = await client.infer("acme.m", [str(i) for i in range(35)])
    assert one.label == '{"text": "a", "text_pair": "b"}'
    assert [p.label for p in many] == [str(i) for i in range(35)]


@pytest.mark.parametrize("how", ["zstd", "gzip", None])
def test_rows_are_sent_compressed_and_as_a_stream(how: Any) -> None:
    rows = [{"text": f"text {i}", "label": "a"} for i in range(20_000)]
    with scripted(lambda r, n: Said(body={"job": "j"})) as server:
        with hmi.Client(server.url, compress=how) as client:
            client.models.create("acme.m", rows, domain="minilm")
            with pytest.raises(InvalidInput, match="a row is a int"):
                client.models.create("acme.m", [1, 2], domain="minilm")  # type: ignore[list-item]
    body = server.sent[0].body
    part = body.split(b'filename="data"')[1].split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
    if how == "gzip":
        part = gzip.decompress(part)
    elif how == "zstd":
        part = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(part)).read()
    assert part.count(b"\n") == len(rows)
    assert server.sent[0].headers["transfer-encoding"] == "chunked"


def test_an_iterator_is_read_once_so_its_call_is_not_repeated_after_it_began() -> None:
    with scripted(lambda r, n: error(503, "unavailable")) as server, hmi.Client(server.url) as client:
        with pytest.raises(Unavailable):
            client.models.create("acme.m", iter([{"text": "a", "label": "b"}]), domain="minilm")
        assert len(server.sent) == 1


def test_lists_are_read_page_by_page() -> None:
    def script(request: Sent, at: int) -> Said:
        if request.path.startswith("/manage/audit"):
            lines = [{"n": at, "at": "now", "event": "change", "who": "acme"}]
            return Said(body={"lines": lines, "position": f"p{at}", "more": at < 2})
        job = {"job": f"j{at}", "kind": "fine_tune", "state": "queued", "target": "m", "created": "now"}
        return Said(body={"jobs": [job] if at % 2 else [], "next": f"n{at}"})  # a page may be empty

    with scripted(script) as server, hmi.Client(server.url) as client:
        assert [line.n for line in client.audit(tenant="acme")] == [0, 1, 2]
        assert [job.job for job in client.jobs.list(state="queued", limit=2)] == ["j3", "j5"]
    assert server.sent[2].path == "/manage/audit?tenant=acme&after=p1"
    assert server.sent[4].path == "/manage/jobs?state=queued&after=n3&limit=1"
    assert server.sent[5].path == "/manage/jobs?state=queued&after=n4&limit=1"


def test_a_broken_stream_of_events_is_opened_again() -> None:
    job = {"job": "j", "kind": "fine_tune", "target": "acme.m", "created": "now"}
    running = {**job, "state": "running", "progress": {"phase": "fine-tuning", "step": 1, "total": 3}}
    ended = {**job, "state": "succeeded", "result": {"version": 1}}

    def event(name: str, data: Any) -> bytes:
        return f": still here\n\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()

    def script(request: Sent, at: int) -> Said:
        if at == 0:
            return Said(200, event("progress", running), cut=True)
        if at == 1:
            return error(429, "quota_exceeded", retry_after="0.01")
        if at == 2:
            assert request.path == "/manage/jobs/j"
            return Said(body=running)
        if at == 3:
            return Said(None)
        return Said(200, event("progress", running) + event("end", ended))

    seen: list[str] = []
    with scripted(script) as server, hmi.Client(server.url) as client:
        status = client.jobs("j").wait(progress=lambda s: seen.append(s.state))
    assert status.result == {"version": 1}
    assert seen == ["running", "running", "running", "succeeded"]
