"""A file sent with curl: as docs/http.md shows it, and in ways that fail, of which the answer says so."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hmi.labs.api_world import World, rows, running
from tests.hmi.labs.server_lab import REPO

WAY = "a file is sent as a part: curl -F data=@FILE -F 'spec=JSON'"


def shown() -> list[str]:
    """The command of docs/http.md that sends a file, as words."""
    page = (REPO / "docs" / "http.md").read_text()
    [command] = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "-F data=@" in block]
    return shlex.split(command.replace("\\\n", " "))


async def sent(world: World, words: list[str], folder: Path) -> Any:
    """Run a command of curl against a server, in a folder."""
    if shutil.which("curl") is None:
        pytest.skip("the machine has no curl")
    url = str(world.client.make_url("")).rstrip("/")
    words = [word.replace("localhost:8080", url) for word in words if not word.startswith("Authorization")]
    ran = await asyncio.create_subprocess_exec(
        *[word for word in words if word != "-H"], "-s", cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await ran.communicate()
    return json.loads(out)


async def test_the_command_of_the_docs_starts_a_training_and_its_like_checks_a_file(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.jsonl").write_bytes(rows())
    words = [word.replace("minilm/news", "tiny") for word in shown()]
    async with running(folder, job_workers=0) as world:
        made = await sent(world, words, tmp_path)
        _, job, _ = await world.call("DELETE", f"/manage/jobs/{made['job']}")
        checked = [word.replace("/manage/models", "/manage/check") for word in words[:-1]]
        seen = await sent(world, [*checked, "spec={}"], tmp_path)
    assert (job["kind"], job["target"]) == ("fine_tune", "acme.intent")
    assert (seen["usable"], seen["task"]) == (True, "classification")


@pytest.mark.parametrize("kind", ["application/json", "text/csv", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n',
        json.dumps([{"text": "a", "label": "b"}] * 3000).encode(),  # too many values for a call's JSON
        b"[" + b" " * (1 << 20) + b"]",  # too many bytes
        b"text,label\na,b\n",
        json.dumps({"model": "acme.x", "domain": "tiny", "task": "pair", "data": "train.csv"}).encode(),
        json.dumps(
            {"model": "acme.x", "domain": "tiny", "task": "pair", "data": {"path": "no.csv"}}
        ).encode(),
    ],
)
async def test_a_file_that_is_posted_as_the_body_gets_the_command(
    folder: Path, kind: str, body: bytes
) -> None:
    async with running(folder, job_workers=0) as world:
        headers = {"Content-Type": kind}
        status, answer, _ = await world.call("POST", "/manage/models", data=body, headers=headers)
    assert status in (400, 404, 413, 415, 422)
    assert answer["error"]["message"].endswith(WAY)
    assert "several requests" not in answer["error"]["message"]


async def test_an_error_that_is_about_no_file_stays_as_it_is(folder: Path) -> None:
    async with running(folder, job_workers=0) as world:
        _, wrong, _ = await world.call("POST", "/manage/models", {"model": "acme.x", "task": "pair"})
        _, body, _ = await world.call(
            "POST", "/infer/acme.m", data=b"x", headers={"Content-Type": "text/csv"}
        )
    assert "curl" not in wrong["error"]["message"]
    assert "curl" not in body["error"]["message"]
