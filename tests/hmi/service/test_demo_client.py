"""The demo's client against a small HTTP server, and what it computes from the answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from hmi.demo.client import DemoClient
from hmi.demo.folder import TenantFolder
from hmi.demo.measure import inputs_of, measure
from hmi.demo.onboard import TenantKeyFile
from hmi.demo.steps import Steps, follow
from hmi.errors import Conflict, HmiError, NotFound, Unavailable


class Handler(BaseHTTPRequestHandler):
    """Answers the few calls tested here as HMI would; `seen` records them."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]
    busy = 0
    polls = 0

    def do_GET(self) -> None:
        self._note()
        if self.path == "/manage/jobs/j1":
            type(self).polls += 1
            ended = type(self).polls > 2
            progress = {"phase": "fine-tuning", "step": type(self).polls, "total": 3}
            self._say(
                200, {"state": "succeeded" if ended else "running", "progress": progress, "result": {"a": 1}}
            )
        elif self.path.startswith("/manage/models"):
            self._say(200, {"models": [{"model": "acme.topic", "bytes": 1234}]})
        else:
            self._say(404, {"error": {"kind": "not_found", "message": "there is no such thing: check it"}})

    def do_POST(self) -> None:
        body = self._note()
        if self.path == "/exists":
            self._say(409, {"error": {"kind": "conflict", "message": "exists"}})
        elif self.path == "/odd":
            self._say(418, {"error": {"kind": "teapot", "message": "odd"}})
        elif self.path == "/busy" and type(self).busy < 2:
            type(self).busy += 1
            self._say(503, {"error": {"kind": "unavailable", "message": "later"}}, {"Retry-After": "0.01"})
        elif self.path == "/infer/acme.topic":
            text = json.loads(body)["inputs"][0]["text"]
            if text == "bad":
                self._say(422, {"error": {"kind": "invalid_input", "message": "no"}})
                return
            plot = {"trigram": 6, "bigram": 3, "unigram": 1, "miss": 0}
            label = "x" if text.startswith("x") else "y"
            self._say(200, {"outputs": [{"label": label}], "provenance": {"plot": plot}})
        else:
            self._say(200, {"ok": True})

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _note(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.seen.append((self.command, self.path, dict(self.headers.items()), body))
        return body

    def _say(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def server() -> Iterator[tuple[DemoClient, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"seen": [], "busy": 0, "polls": 0})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield DemoClient("127.0.0.1", httpd.server_address[1], key="admin"), handler
    httpd.shutdown()
    httpd.server_close()


def quiet() -> Steps:
    with Path("/dev/null").open("w") as nowhere:
        return Steps(Console(file=nowhere, quiet=True), total=1)


def test_the_servers_errors_are_raised_as_our_own(server: tuple[DemoClient, type[Handler]]) -> None:
    client, _ = server
    with pytest.raises(NotFound, match="check it"):
        client.get("/nothing")
    with pytest.raises(Conflict):
        client.post("/exists", {})
    with pytest.raises(HmiError, match="odd"):
        client.post("/odd", {})
    with pytest.raises(Unavailable, match="does not answer"):
        DemoClient("127.0.0.1", 1).get("/x")


def test_a_busy_server_is_asked_again(server: tuple[DemoClient, type[Handler]]) -> None:
    client, handler = server
    assert client.post("/busy", {}) == {"ok": True}
    assert len(handler.seen) == 3


def test_a_connection_that_the_server_closed_opens_again(server: tuple[DemoClient, type[Handler]]) -> None:
    client, handler = server
    handler.timeout = 0.05
    client.get("/manage/models")
    time.sleep(0.3)
    assert client.get("/manage/models") == {"models": [{"model": "acme.topic", "bytes": 1234}]}
    assert len(handler.seen) == 2


def test_files_travel_as_multipart_byte_for_byte(
    server: tuple[DemoClient, type[Handler]], tmp_path: Path
) -> None:
    client, handler = server
    content = b"line\r\n--odd--\n\x00\xff"
    (tmp_path / "rows.jsonl").write_bytes(content)
    client.post("/up", {"model": "a.b", "größe": 1}, files={"data": tmp_path / "rows.jsonl"}, key="theirs")
    _, _, headers, body = handler.seen[0]
    assert headers["Authorization"] == "Bearer theirs"
    boundary = headers["Content-Type"].split("boundary=")[1].encode()
    _, spec, data, end = body.split(b"--" + boundary)
    assert json.loads(spec.split(b"\r\n\r\n", 1)[1]) == {"model": "a.b", "größe": 1}
    assert b'name="data"; filename="rows.jsonl"' in data
    assert data.split(b"\r\n\r\n", 1)[1] == content + b"\r\n"
    assert end == b"--\r\n"


def test_a_job_is_followed_to_its_end(server: tuple[DemoClient, type[Handler]]) -> None:
    client, handler = server
    ended = {}
    follow(client, {"j1": "acme.topic"}, quiet(), lambda what, view: ended.update({what: view["state"]}))
    assert ended == {"acme.topic": "succeeded"}
    assert handler.polls == 3


def test_measuring_counts_what_is_right_wrong_and_not_answered(
    server: tuple[DemoClient, type[Handler]], tmp_path: Path
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


def test_a_label_never_travels_with_its_text() -> None:
    assert inputs_of({"text": "a", "text_pair": "b", "label": "same"}) == {"text": "a", "text_pair": "b"}
    assert inputs_of({"tokens": ["a"], "tags": ["O"]}) == {"tokens": ["a"]}
