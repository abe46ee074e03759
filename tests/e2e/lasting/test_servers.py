"""Three servers that answer for each other: which one answers a tenant, and what callers see when one comes,
goes, hangs or dies. Each has a data folder of its own, and they share a bucket."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hmi.api.nodes.ring import ranked
from hmi.errors import HmiError
from tests.e2e.lasting.test_kill import Lab, fine_tune
from tests.e2e.lasting.test_nodes import Nodes, nodes, succeeded, tenants, update, version, with_root
from tests.waiting import wait_until

__all__ = ["nodes"]
TENANTS = [f"t{i}" for i in range(8)]


@pytest.fixture(scope="module")
def servers(nodes: Nodes, tiny_source: Any) -> list[Lab]:
    first = with_root(nodes, tiny_source)
    for tenant in ("acme", *TENANTS):
        first.client.request("POST", "/manage/tenants", {"tenant": tenant})
    jobs = [fine_tune(first, "acme.first", epochs=1)]
    for tenant in TENANTS:
        body = {"model": f"{tenant}.e", "domain": "tiny", "task": "embedding"}
        jobs.append(first.client.request("POST", "/manage/models", body)["job"])
    assert {view["state"] for view in first.finish(jobs)} == {"succeeded"}
    return [first, nodes.start("second", "replica"), nodes.start("third", "replica")]


def embed(lab: Lab, tenant: str) -> list[float]:
    found = lab.client.request("POST", f"/infer/{tenant}.e", {"inputs": ["good market"]})
    return [round(value, 3) for value in found["outputs"][0]["embedding"]]


def view(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = lab.client.request("GET", "/manage/server")
    return found


def leads(lab: Lab) -> str:
    """The URL of the primary, as a server knows it."""
    return str(lab.client.request("GET", "/manage/servers")["primary"])


def listed(lab: Lab) -> set[str]:
    return {one["url"] for one in lab.client.request("GET", "/manage/servers")["servers"]}


def owner(servers: list[Lab], tenant: str) -> Lab:
    """The server that answers a tenant while all of these are up."""
    ids = {view(lab)["id"]: lab for lab in servers}
    return ids[ranked(tenant, list(ids))[0]]


def chosen(servers: list[Lab]) -> tuple[Lab, list[Lab]]:
    """The replica that answers most tenants, and the other servers."""
    owners = [owner(servers, tenant) for tenant in TENANTS]
    one = max(servers[1:], key=owners.count)
    assert one in owners, "else nothing is tested"
    return one, [lab for lab in servers if lab is not one]


@contextmanager
def asking(servers: list[Lab]) -> Iterator[list[str]]:
    """While the block runs, each of these servers is asked for all tenants; what goes wrong is yielded."""
    wrong: list[str] = []
    right = {tenant: embed(servers[0], tenant) for tenant in TENANTS}
    over = threading.Event()

    def ask(lab: Lab) -> None:
        while not over.is_set():
            for tenant in TENANTS:
                try:
                    if (got := embed(lab, tenant)) != right[tenant]:
                        wrong.append(f"{tenant}: {got[:3]} in place of {right[tenant][:3]}")
                except HmiError as error:
                    wrong.append(f"{tenant}: {error.message}")

    threads = [threading.Thread(target=ask, args=(lab,)) for lab in servers]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_each_tenant_is_answered_by_one_server(servers: list[Lab]) -> None:
    wait_until(lambda: all(len(listed(lab)) == 3 for lab in servers))
    for tenant in TENANTS:
        first, *others = [embed(lab, tenant) for lab in servers]
        assert all(other == first for other in others)
    views = [view(lab) for lab in servers]
    assert sum(one["models"] for one in views) == len(TENANTS), "no model is in memory twice"
    assert sum(one["passed"] for one in views) == sum(one["answered"] for one in views) == 2 * len(TENANTS)
    by_one = servers[0].client.request("GET", "/manage/servers")
    assert [one["view"]["id"] for one in by_one["servers"]] == sorted(one["id"] for one in views)


def test_readers_of_all_servers_only_move_forward(servers: list[Lab]) -> None:
    succeeded(servers[0], update(servers[0], "acme.first"))
    seen: list[list[int]] = [[] for _ in servers]
    over = threading.Event()

    def read(number: int, lab: Lab) -> None:
        while not over.is_set():
            seen[number].append(version(lab, "acme.first"))

    threads = [threading.Thread(target=read, args=pair) for pair in enumerate(servers)]
    for thread in threads:
        thread.start()
    wanted = []
    for turn in range(6):
        wanted.append(1 + turn % 2)
        path = "/manage/models/acme.first/rollback"
        servers[turn % 3].client.request("POST", path, {"version": wanted[-1]})
        for lab in servers:
            wait_until(lambda lab=lab: version(lab, "acme.first") == wanted[-1])  # type: ignore[misc]
    over.set()
    for thread in threads:
        thread.join()
    for versions in seen:
        steps = [v for i, v in enumerate(versions) if i == 0 or versions[i - 1] != v]
        assert steps in (wanted, [2, *wanted])


def test_a_server_that_dies_costs_no_call_at_the_others(servers: list[Lab]) -> None:
    dying, left = chosen(servers)
    with asking(left) as wrong:
        before = [view(lab)["passed"] for lab in left]
        wait_until(lambda: all(view(lab)["passed"] > had for lab, had in zip(left, before, strict=True)))
        dying.kill()
        for _ in range(5):
            for tenant in TENANTS:
                embed(servers[0], tenant)
    assert wrong == []
    dying.start()
    wait_until(lambda: all(len(listed(lab)) == 3 for lab in servers))


def test_a_server_that_hangs_costs_seconds(servers: list[Lab]) -> None:
    hanging, _ = chosen(servers)
    mine = [tenant for tenant in TENANTS if owner(servers, tenant) is hanging]
    before = {tenant: embed(servers[0], tenant) for tenant in mine}
    assert hanging.server is not None
    os.kill(hanging.server.pid, signal.SIGSTOP)
    try:
        assert {tenant: embed(servers[0], tenant) for tenant in mine} == before
    finally:
        os.kill(hanging.server.pid, signal.SIGCONT)
    wait_until(lambda: all(len(listed(lab)) == 3 for lab in servers))


def test_a_server_that_leaves_hands_its_models_over(servers: list[Lab]) -> None:
    leaving = owner(servers, "acme")
    left = [lab for lab in servers if lab is not leaving]
    heir = owner(left, "acme")
    leaving.ask("acme.first")
    assert leaving.server is not None
    leaving.server.terminate()
    assert leaving.server.wait(60) == 0
    assert all(len(listed(lab)) == 2 for lab in left)
    said = re.findall(r"loaded (\d+) of (\d+) models for", (heir.work / "server.log").read_text())
    assert said
    assert all(loaded == wanted for loaded, wanted in said)
    heir.ask("acme.first")
    leaving.start()


def test_a_server_that_leaves_costs_no_call_at_the_others(servers: list[Lab]) -> None:
    wait_until(lambda: all(len(listed(lab)) == 3 for lab in servers))
    leaving, left = chosen(servers)
    assert leaving.server is not None
    with asking(left) as wrong:
        leaving.server.terminate()
        assert leaving.server.wait(60) == 0
        leaving.start()
        wait_until(lambda: all(len(listed(lab)) == 3 for lab in servers))
    assert wrong == []


def test_a_replica_becomes_the_primary_without_a_restart(servers: list[Lab]) -> None:
    old, new, third = servers
    assert view(old)["primary"]
    with asking([third]) as wrong:
        new.client.request("POST", "/manage/server/lead")
        assert view(new)["primary"]
        wait_until(lambda: not view(old)["primary"])
        wait_until(lambda: leads(third) == new.client.url)
        succeeded(third, fine_tune(third, "acme.second", epochs=1))
        third.client.request("POST", "/manage/tenants", {"tenant": "fresh"})
    assert wrong == []
    assert "fresh" in tenants(new)
    wait_until(lambda: "fresh" in tenants(old))
    error = refused_to_lead(old)
    assert "restart it first" in error.message


def refused_to_lead(lab: Lab) -> HmiError:
    with pytest.raises(HmiError) as error:
        lab.client.request("POST", "/manage/server/lead")
    return error.value
