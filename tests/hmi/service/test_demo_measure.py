"""What the demo computes from the answers of a small HTTP server, and how it follows jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from hmi.client import Client
from hmi.demo.folder import TenantFolder
from hmi.demo.measure import inputs_of, measure
from hmi.demo.onboard import TenantKeyFile
from hmi.demo.steps import Steps, follow


class Handler(BaseHTTPRequestHandler):
    """Answers the few calls tested here as HMI would; `seen` records them."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]
    polls = 0

    def do_GET(self) -> None:
        self._note()
        if self.path == "/manage/jobs/j1":
            type(self).polls += 1
            ended = type(self).polls > 2
            progress = {"phase": "fine-tuning", "step": type(self).polls, "total": 3}
            state = "succeeded" if ended else "running"
            job = {"job": "j1", "kind": "fine_tune", "target": "acme.topic", "created": "", "state": state}
            self._say(200, {**job, "progress": progress, "result": {"a": 1}})
        else:
            model = {"model": "acme.topic", "current": 1, "domain": "r", "task": "classification"}
            self._say(200, {"models": [{**model, "bytes": 1234}], "next": None})

    def do_POST(self) -> None:
        body = self._note()
        if self.path.startswith("/generate/"):
            text = ' {"of": "rats"} ' if "rats" in json.loads(body)["prompt"] else "{}"
            usage = {"prompt_tokens": 4, "cached_tokens": 0, "written_tokens": 2}
            plot = {"trigram": 0, "bigram": 1, "unigram": 3, "miss": 0}
            about = {"model": "acme.record", "version": 1, "finish": "end", "usage": usage, "plot": plot}
            self._say(200, {**about, "text": text})
            return
        text = json.loads(body)["inputs"][0]["text"]
        if text == "bad":
            self._say(422, {"error": {"kind": "invalid_input", "message": "no"}})
            return
        plot = {"trigram": 6, "bigram": 3, "unigram": 1, "miss": 0}
        outputs = [{"label": "x" if text.startswith("x") else "y"}]
        about = {"id": "a", "model": "acme.topic", "version": 1, "timing": {}}
        self._say(200, {**about, "outputs": outputs, "provenance": {"plot": plot}})

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _note(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.seen.append((self.command, self.path, dict(self.headers.items()), body))
        return body

    def _say(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def server() -> Iterator[tuple[Client, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"seen": [], "polls": 0})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield Client(f"http://127.0.0.1:{httpd.server_address[1]}", "admin"), handler
    httpd.shutdown()
    httpd.server_close()


def quiet() -> Steps:
    with Path("/dev/null").open("w") as nowhere:
        return Steps(Console(file=nowhere, quiet=True), total=1)


def test_a_job_is_followed_to_its_end(server: tuple[Client, type[Handler]]) -> None:
    client, handler = server
    ended = {}
    follow(client, {"j1": "acme.topic"}, quiet(), lambda what, end: ended.update({what: end.state}))
    assert ended == {"acme.topic": "succeeded"}
    assert handler.polls == 3


def test_measuring_counts_what_is_right_wrong_and_not_answered(
    server: tuple[Client, type[Handler]], tmp_path: Path
) -> None:
    client, handler = server
    rows = [{"text": "x 1", "label": "x"}, {"text": "y 1", "label": "x"}, {"text": "bad", "label": "x"}]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps(r) + "\n" for r in rows))
    tenant = TenantFolder("acme", "topic", "root", "classification", "", test, None, test, {})
    keys = TenantKeyFile(tmp_path / "keys.json")
    keys.add("acme", "hmi_k")
    (found,) = measure(client, [tenant], keys, quiet())
    assert (found.value, found.rows, found.failed, found.bytes) == (0.5, 2, 1, 1234)
    assert found.hits == {"trigram": 0.6, "bigram": 0.3, "unigram": 0.1, "miss": 0.0}
    assert found.errors == ("invalid_input: no",)
    assert 0 < found.p50_ms <= found.p95_ms
    sent = [headers for method, _, headers, _ in handler.seen if method == "POST"]
    assert {h["Authorization"] for h in sent} == {"Bearer hmi_k"}


def test_a_text_is_right_if_it_equals_the_completion(
    server: tuple[Client, type[Handler]], tmp_path: Path
) -> None:
    client, handler = server
    rows = [{"prompt": f"of {of}", "completion": json.dumps({"of": of})} for of in ("rats", "mice")]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps(r) + "\n" for r in rows))
    form = {"json": True}
    tenant = TenantFolder("acme", "record", "root", "generation", "", test, None, test, {}, form)
    keys = TenantKeyFile(tmp_path / "keys.json")
    keys.add("acme", "hmi_k")
    (found,) = measure(client, [tenant], keys, quiet())
    assert (found.metric, found.value, found.rows, found.failed) == ("exact match", 0.5, 2, 0)
    assert found.hits == {"trigram": 0.0, "bigram": 0.25, "unigram": 0.75, "miss": 0.0}
    sent = [json.loads(body) for method, _, _, body in handler.seen if method == "POST"]
    assert {body["prompt"] for body in sent} == {"of rats", "of mice"}
    assert all(body["form"] == form for body in sent)
    assert {name for body in sent for name in body} == {"prompt", "form", "max_tokens", "stream"}


def test_a_label_never_travels_with_its_text() -> None:
    assert inputs_of({"text": "a", "text_pair": "b", "label": "same"}) == {"text": "a", "text_pair": "b"}
    assert inputs_of({"tokens": ["a"], "tags": ["O"]}) == {"tokens": ["a"]}
