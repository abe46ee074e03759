"""Servers that share a bucket: a primary, and a replica with a data folder of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bench.harness.server import free_port
from hmi.cli.framework.client import RemoteError
from tests.e2e.conftest import mood_rows
from tests.e2e.lasting.test_kill import Lab, fine_tune
from tests.tiny import random_texts
from tests.waiting import wait_until


@dataclass
class Nodes:
    """Servers with one bucket, and no other place in common."""

    work: Path
    running: list[Lab] = field(default_factory=list)

    @property
    def bucket(self) -> Path:
        return self.work / "bucket"

    def start(self, name: str, role: str, *arguments: str, **tls: Path) -> Lab:
        """tls: `trusted` and `shown`, see `Lab`."""
        folder = self.work / name
        folder.mkdir(exist_ok=True)
        lab = Lab(
            folder / "data",
            folder,
            free_port(),
            ("--bucket", str(self.bucket), "--role", role, "--no-improve", *arguments),
            **tls,
        )
        self.running.append(lab)
        lab.start()
        return lab


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    found = Nodes(tmp_path_factory.mktemp("nodes"))
    yield found
    for lab in found.running:
        if lab.server is not None:
            lab.kill()


def with_root(nodes: Nodes, tiny_source: Path, *arguments: str, name: str = "first") -> Lab:
    """Start a primary, and import the root `tiny`."""
    lab = nodes.start(name, "primary", *arguments)
    text = lab.file("text", "\n".join(random_texts(300, seed=1)).encode())
    body = {"root": "tiny", "source": str(tiny_source), "options": {"steps": 4, "upper_steps": 2}}
    succeeded(lab, lab.client.request("POST", "/manage/roots", body, files={"text": text})["job"])
    return lab


@pytest.fixture(scope="module")
def primary(nodes: Nodes, tiny_source: Path) -> Lab:
    lab = with_root(nodes, tiny_source)
    lab.client.request("POST", "/manage/tenants", {"tenant": "acme"})
    corpus = lab.file("corpus", "\n".join(random_texts(500, seed=3)).encode())
    body = {"domain": "tiny/news", "alpha": 100}
    succeeded(lab, lab.client.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"])
    succeeded(lab, fine_tune(lab, "acme.first", epochs=2, domain="tiny/news"))
    return lab


@pytest.fixture(scope="module")
def replica(nodes: Nodes, primary: Lab) -> Lab:
    return nodes.start("second", "replica")


def succeeded(lab: Lab, job: str) -> dict[str, Any]:
    (view,) = lab.finish([job])
    assert view["state"] == "succeeded", view
    return view


def version(lab: Lab, model: str) -> int:
    body = {"inputs": ["good market"]}
    return int(lab.client.request("POST", f"/infer/{model}", body)["version"])


def test_a_replica_answers_as_the_primary(primary: Lab, replica: Lab) -> None:
    assert replica.ask("acme.first") == primary.ask("acme.first")
    exact = {"inputs": ["cell protein rises"], "parameters": {"exact": True}}
    ask = [lab.client.request("POST", "/infer/acme.first", exact)["outputs"] for lab in (primary, replica)]
    assert ask[0] == ask[1]


def test_a_change_is_live_everywhere_and_no_reader_moves_back(primary: Lab, replica: Lab) -> None:
    succeeded(primary, update(primary, "acme.first"))
    seen: dict[str, list[int]] = {"primary": [], "replica": []}
    over = threading.Event()

    def read(name: str, lab: Lab) -> None:
        while not over.is_set():
            seen[name].append(version(lab, "acme.first"))

    threads = [threading.Thread(target=read, args=a) for a in (("primary", primary), ("replica", replica))]
    for thread in threads:
        thread.start()
    wanted = []
    for turn in range(6):
        to = 1 + turn % 2
        primary.client.request("POST", "/manage/models/acme.first/rollback", {"version": to})
        wanted.append(to)
        wait_until(lambda to=to: version(replica, "acme.first") == to)  # type: ignore[misc]
    over.set()
    for thread in threads:
        thread.join()
    for name, versions in seen.items():
        steps = [v for i, v in enumerate(versions) if i == 0 or versions[i - 1] != v]
        assert steps in (wanted, [2, *wanted], [1, 2, *wanted]), name


def test_a_replica_passes_management_on(primary: Lab, replica: Lab) -> None:
    assert replica.models() == primary.models() == ["acme.first"]
    replica.client.request("POST", "/manage/tenants", {"tenant": "globex"})
    assert "globex" in [t["tenant"] for t in primary.client.request("GET", "/manage/tenants")["tenants"]]
    succeeded(replica, fine_tune(replica, "globex.mood", epochs=1))
    wait_until(lambda: answers(replica, "globex.mood"))
    assert replica.ask("globex.mood") == primary.ask("globex.mood")
    assert refused(replica, "GET", "/manage/tenants/nobody").remote_kind == "not_found"
    spoilt = refused(replica, "POST", "/manage/tenants", {"tenant": "No Such Name"})
    assert (spoilt.remote_kind, spoilt.details["field"]) == ("invalid_input", "tenant")
    replica.client.request("DELETE", "/manage/models/globex.mood")
    wait_until(lambda: not answers(replica, "globex.mood"))


def test_an_erasure_reaches_a_replica(primary: Lab, replica: Lab) -> None:
    before = replica.ask("acme.first")
    text = primary.file("erased", "\n".join(random_texts(500, seed=3)[:250]).encode())
    path = "/manage/domains/tiny%2Fnews/erase"
    job = primary.client.request("POST", path, {"phrases": []}, files={"text": text})["job"]
    assert succeeded(primary, job)["result"]["versions"]
    for lab in (primary, replica):
        wait_until(lambda lab=lab: lab.ask("acme.first") != before)  # type: ignore[misc]
    assert replica.ask("acme.first") == primary.ask("acme.first")


def test_while_the_bucket_is_away_a_replica_answers_and_nothing_is_lost(
    nodes: Nodes, primary: Lab, replica: Lab
) -> None:
    answer = replica.ask("acme.first")
    aside = nodes.bucket.with_name("aside")
    nodes.bucket.rename(aside)
    nodes.bucket.write_text("a file, so that nothing can be read or written below it")
    try:
        error = refused(primary, "POST", "/manage/tenants", {"tenant": "late"})
        assert error.remote_kind == "unavailable"
        assert str(nodes.bucket) not in error.message
        assert replica.ask("acme.first") == primary.ask("acme.first") == answer
    finally:
        nodes.bucket.unlink()
        aside.rename(nodes.bucket)
    assert "late" not in [t["tenant"] for t in primary.client.request("GET", "/manage/tenants")["tenants"]]

    def created() -> bool:
        try:
            primary.client.request("POST", "/manage/tenants", {"tenant": "late"})
        except RemoteError:  # for some seconds the primary does not ask again
            return False
        return True

    wait_until(created)


def test_another_server_takes_over(nodes: Nodes, primary: Lab, replica: Lab) -> None:
    """Its data folder is empty. The old primary lives on, and then comes back."""
    answer = primary.ask("acme.first")
    job = fine_tune(primary, "acme.long", epochs=100)
    wait_until(lambda: primary.client.request("GET", f"/manage/jobs/{job}")["state"] == "running")
    third = nodes.start("third", "primary")
    assert third.ask("acme.first") == answer
    assert {"tiny", "tiny/news"} <= set(third.domains())
    third.client.request("POST", "/manage/tenants", {"tenant": "fresh"})
    for lab in (primary, replica):  # both pass it on to the new primary
        wait_until(lambda lab=lab: "fresh" in tenants(lab))  # type: ignore[misc]
    primary.kill()
    assert replica.ask("acme.first") == answer
    succeeded(third, job)
    succeeded(third, fine_tune(third, "acme.more", epochs=1, domain="tiny/news"))
    wait_until(lambda: answers(replica, "acme.more"))
    assert replica.ask("acme.more") == third.ask("acme.more")
    third.kill()
    assert "the primary does not answer" in refused(replica, "GET", "/manage/tenants").message
    assert replica.ask("acme.first") == answer
    primary.start()  # it takes over again
    assert primary.ask("acme.more") == replica.ask("acme.more")
    assert "fresh" in tenants(primary)


def refused(lab: Lab, method: str, path: str, body: dict[str, Any] | None = None) -> RemoteError:
    with pytest.raises(RemoteError) as error:
        lab.client.request(method, path, body)
    return error.value


def tenants(lab: Lab) -> list[str]:
    """The tenants. While one server knows a new primary and the next does not, the answer is 503."""
    patient = replace(lab.client, patience_s=30.0)
    return [t["tenant"] for t in patient.request("GET", "/manage/tenants")["tenants"]]


def update(lab: Lab, model: str) -> str:
    files = {"data": lab.file("more", mood_rows(9, 160))}
    body = {"publish": "always"}
    return str(lab.client.request("POST", f"/manage/models/{model}/update", body, files=files)["job"])


def answers(lab: Lab, model: str) -> bool:
    try:
        lab.ask(model)
    except RemoteError:
        return False
    return True
