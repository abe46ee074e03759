"""Three servers that answer for each other: which one answers a tenant, and what callers see when one comes,
goes, hangs or dies. Each has a data folder of its own, and they share a bucket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from bench.harness.server import free_port
from hmi.api.handlers.servers import read_view
from hmi.api.nodes.ring import ranked
from hmi.api.rpc.messages import MESSAGES
from hmi.api.schemas.servers import ServerView
from hmi.cluster.keeper import LOOK_S, Keeper, ServerSpec, _runs
from hmi.config.values import flag, variable
from hmi.errors import HmiError
from tests.delivery.test_kuberay import LEAVE
from tests.e2e.lasting.test_kill import Lab, fine_tune
from tests.e2e.lasting.test_nodes import Nodes, nodes, succeeded, tenants, update, version, with_root
from tests.hmi.labs.tls_lab import Authority
from tests.waiting import wait_until

__all__ = ["nodes"]
TENANTS = [f"t{i}" for i in range(8)]
SERVICE = "/inference.GRPCInferenceService"


@pytest.fixture(scope="module")
def servers(nodes: Nodes, tiny_source: Any) -> list[Lab]:
    given = [(flag("grpc_port"), str(free_port()), flag("tenant_burst_s"), "1000") for _ in range(3)]
    first = with_root(nodes, tiny_source, *given[0])
    for tenant in ("acme", *TENANTS):
        first.client.request("POST", "/manage/tenants", {"tenant": tenant})
    jobs = [fine_tune(first, "acme.first", epochs=1)]
    for tenant in TENANTS:
        body = {"model": f"{tenant}.e", "domain": "tiny", "task": "embedding"}
        jobs.append(first.client.request("POST", "/manage/models", body)["job"])
    assert {view["state"] for view in first.finish(jobs)} == {"succeeded"}
    return [first, nodes.start("second", "replica", *given[1]), nodes.start("third", "replica", *given[2])]


def embed(lab: Lab, tenant: str) -> list[float]:
    found = lab.client.request("POST", f"/infer/{tenant}.e", {"inputs": ["good market"]})
    return [round(value, 3) for value in found["outputs"][0]["embedding"]]


def message(model: str, text: str = "good market", version: str = "") -> bytes:
    """A ModelInferRequest for one text."""
    request = MESSAGES["ModelInferRequest"](model_name=model, model_version=version)
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return bytes(request.SerializeToString())


def told(lab: Lab, data: bytes, key: str = "", timeout_s: float = 60.0) -> tuple[str, Any, dict[str, str]]:
    """What a server says to a message over gRPC: the code, the answer or the error's text, and metadata."""
    given = [("x-request-id", "mine"), *([("authorization", f"Bearer {key}")] if key else [])]
    with channel_to(lab) as channel:
        call = channel.unary_unary(f"{SERVICE}/ModelInfer")
        try:
            answer, done = call.with_call(data, metadata=given, timeout=timeout_s)
            return "OK", answer, dict(done.trailing_metadata())
        except grpc.RpcError as error:
            return error.code().name, error.details(), dict(error.trailing_metadata())


def channel_to(lab: Lab) -> Any:
    address = f"127.0.0.1:{lab.arguments[lab.arguments.index(flag('grpc_port')) + 1]}"
    ca, pair = lab.client.ca, lab.client.certificate
    if ca is None or pair is None:
        return grpc.insecure_channel(address)
    trusted, shown = (Path(file).read_bytes() for file in (ca, pair))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, shown, shown))


def embed_by_message(lab: Lab, tenant: str) -> list[float]:
    """As `embed`, over gRPC."""
    code, answer, _ = told(lab, message(f"{tenant}.e"))
    if code != "OK":
        raise HmiError(f"{code}: {answer}")
    (raw,) = MESSAGES["ModelInferResponse"].FromString(answer).raw_output_contents[:1]
    return [round(float(value), 3) for value in np.frombuffer(raw, np.float32)]


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
                for ask_by in (embed, embed_by_message):
                    try:
                        if (got := ask_by(lab, tenant)) != right[tenant]:
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
    # A server of another release may say more, or less.
    newer = {**views[0], "zone": "z1", "pool": {**views[0]["pool"], "zone": "z1"}}
    assert read_view(newer) == ServerView.model_validate(views[0])
    assert read_view({**views[0], "phase": "dreaming"}) is None
    del newer["position"]
    assert read_view(newer) is None


def test_an_administrator_may_name_the_model_in_any_place(servers: list[Lab]) -> None:
    """In the body of each protocol, or by a header: the tenant's own server answers."""
    for tenant in TENANTS:
        model, text = f"{tenant}.e", "good market"
        own = owner(servers, tenant)
        asked = next(lab for lab in servers if lab is not own)
        before = view(asked)["passed"], view(own)["answered"]
        (mixed,) = asked.client.request("POST", "/infer", [{"model": model, "inputs": [text]}])
        openai = asked.client.request("POST", "/v1/embeddings", {"model": model, "input": text})
        headers = {"X-Model": model}
        tei = httpx.post(f"{asked.client.url}/embed", json={"inputs": text}, headers=headers).json()
        assert [round(value, 3) for value in mixed["outputs"][0]["embedding"]] == embed(own, tenant)
        assert openai["data"][0]["embedding"] == pytest.approx(tei[0], abs=1e-3)
        assert (view(asked)["passed"], view(own)["answered"]) == (before[0] + 3, before[1] + 3)
    asked = servers[0]
    passed = view(asked)["passed"]
    several = [{"model": f"{tenant}.e", "inputs": ["good market"]} for tenant in TENANTS]
    answers = asked.client.request("POST", "/infer", several)
    assert [answer["model"] for answer in answers] == [one["model"] for one in several]
    assert view(asked)["passed"] == passed, "models of several tenants are asked where the call arrives"
    wrong = httpx.post(f"{asked.client.url}/embed", json={"inputs": "a"}, headers={"X-Model": b"\xe9.e"})
    assert (wrong.status_code, wrong.json()["error_type"]) == (422, "Validation")


def test_a_message_is_answered_by_the_tenants_server(servers: list[Lab]) -> None:
    """With the bytes, errors and metadata that it gets there, and with no more rights."""
    keys = {tenant: new_key(servers, tenant) for tenant in TENANTS}
    for tenant in TENANTS:
        own, model, key = owner(servers, tenant), f"{tenant}.e", keys[tenant]
        others = [lab for lab in servers if lab is not own]
        for data, given in (
            (message(model), ""),
            (message(model), key),
            (message(model, "good", version="1"), key),
            (message(f"{tenant}.none"), key),
            (message(f"{tenant}.none"), ""),
            (message("acme.first"), key),
            (message(model, " "), key),
            (message(model, version="7"), ""),
            (message(model)[:-3], key),
            (b"", key),
        ):
            before = [view(lab)["passed"] for lab in others], view(own)["answered"]
            alone, *passed = [told(lab, data, given) for lab in (own, *others)]
            assert passed == [alone, alone]
            assert ([view(lab)["passed"] for lab in others], view(own)["answered"]) == (
                [count + 1 for count in before[0]],
                before[1] + 2,
            )
        good = told(own, message(model), key)
        assert good[0] == "OK"
        assert good == told(own, message(model), key), "else equal bytes show nothing"
        assert told(own, message("acme.first"), key)[0] == "NOT_FOUND", "it is another tenant's"
        assert {told(lab, message(model), "hmi_wrong")[0] for lab in servers} == {"UNAUTHENTICATED"}
        assert {told(lab, message(model), timeout_s=1e-4)[0] for lab in servers} == {"DEADLINE_EXCEEDED"}
    counted = httpx.get(f"{servers[0].client.url}/metrics").text.splitlines()
    outcomes = [line for line in counted if line.startswith("hmi_requests_total") and "grpc Model" in line]
    assert [line for line in outcomes if 'outcome="passed"' in line], outcomes


def test_the_limits_are_those_of_the_server_that_answers(servers: list[Lab]) -> None:
    """Each call counts there, and its caller learns what is left there."""
    tenant, path = TENANTS[0], f"/manage/tenants/{TENANTS[0]}"
    servers[0].client.request("PATCH", path, {"limits": {"requests_per_s": 0.02}})
    key, none = new_key(servers, tenant), message(f"{tenant}.none")
    for lab in servers:
        wait_until(lambda lab=lab: "ratelimit" in told(lab, none, key)[2])  # type: ignore[misc]
    found = [told(lab, message(f"{tenant}.e"), key)[2] for lab in servers * 2]
    assert {each["ratelimit-policy"] for each in found} == {'"requests";q=20;w=1000'}
    left = [int(each["ratelimit"].partition("r=")[2].partition(";")[0]) for each in found]
    assert left == [19, 18, 17, 16, 15, 14]
    servers[0].client.request("PATCH", path, {"limits": {"requests_per_s": None}})


def test_a_stream_asks_the_servers_of_its_tenants(servers: list[Lab]) -> None:
    """Each message goes its own way; an error ends no stream."""
    one, two = next((a, b) for a in TENANTS for b in TENANTS if owner(servers, a) is not owner(servers, b))
    wrong = [message(f"{one}.none"), message("none"), b"\xff\xff"]
    sent = [message(f"{one}.e"), message(f"{two}.e"), *wrong, message(f"{two}.e", " "), message(f"{one}.e")]
    id, found = "i" * 64, []
    for lab in servers:
        with channel_to(lab) as channel:
            call = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
            found.append(list(call(iter(sent), metadata=[("x-request-id", id)], timeout=60)))
    assert found[0] == found[1] == found[2]
    parsed = [MESSAGES["ModelStreamInferResponse"].FromString(each) for each in found[0]]
    answers = [MESSAGES["ModelInferResponse"].FromString(each.infer_response) for each in parsed]
    assert [each.id for each in answers] == [f"{id}.{i}" for i in range(len(sent))]
    assert [each.model_name for each in answers] == [f"{one}.e", f"{two}.e", "", "", "", "", f"{one}.e"]
    assert [bool(each.error_message) for each in parsed] == [not each.model_name for each in answers]


def test_a_server_checks_the_key_of_a_message(servers: list[Lab]) -> None:
    tenant, other = TENANTS[:2]
    own, data = owner(servers, tenant), message(f"{tenant}.e")
    key, url = new_key(servers, tenant), f"{own.client.url}/server/infer"

    def status(data: bytes, key: str = "", **headers: str) -> tuple[int, bytes]:
        known = {"Authorization": f"Bearer {key}"} if key else {}
        given = {**known, "X-Request-Id": "mine", **headers}
        answer = httpx.post(url, content=data, headers={"Content-Type": "application/octet-stream", **given})
        return answer.status_code, answer.content

    assert status(data, key) == (200, told(own, data, key)[1])
    forwarded = {"X-HMI-Forwarded": "1", "X-HMI-Server-Key": "guessed"}
    assert status(data, "hmi_wrong", **forwarded)[0] == 401
    assert status(message(f"{other}.e"), key, **forwarded)[0] == 404
    assert status(data, "", Host="evil.example")[0] == 403, "a page that rebinds its name"
    assert status(data, key, **{"X-HMI-Deadline-Seconds": "0.000001"})[0] == 504
    assert status(data, key, **{"X-HMI-Deadline-Seconds": "soon"})[0] == 400
    assert status(b"x" * (5 << 20), key)[0] == 413


def new_key(servers: list[Lab], tenant: str) -> str:
    """A tenant's key that all of these know."""
    path = f"/manage/tenants/{tenant}/keys"
    key = str(servers[0].client.request("POST", path, {"scopes": ["infer"]})["key"])

    def known(lab: Lab) -> bool:
        given = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{lab.client.url}/v2/models/stats", headers=given).status_code == 200

    for lab in servers:
        wait_until(lambda lab=lab: known(lab))  # type: ignore[misc]
    return key


def test_readers_of_all_servers_only_move_forward(servers: list[Lab]) -> None:
    succeeded(servers[0], update(servers[0], "acme.first"))
    seen: list[list[int]] = [[] for _ in range(2 * len(servers))]
    over = threading.Event()

    def by_message(lab: Lab, model: str) -> int:
        return int(MESSAGES["ModelInferResponse"].FromString(told(lab, message(model))[1]).model_version)

    def read(number: int, lab: Lab) -> None:
        ask = version if number < len(servers) else by_message
        while not over.is_set():
            seen[number].append(ask(lab, "acme.first"))

    threads = [threading.Thread(target=read, args=pair) for pair in enumerate(servers * 2)]
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
        assert steps in (wanted, [2, *wanted], [1, 2, *wanted])


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


def test_a_pod_that_ends_lets_its_server_leave(nodes: Nodes, servers: list[Lab]) -> None:
    """As Kubernetes does it: a command beside the keeper, which must not start the server again."""
    root, port = nodes.work / "pod", free_port()
    before = listed(servers[1])
    spec = ServerSpec(str(nodes.bucket), settings={variable("improve"): "false"})
    keeper = Keeper(spec, root, "127.0.0.1", port, "127.0.0.1")
    try:
        wait_until(lambda: listed(servers[1]) == before | {keeper.url}, 60)
        pid = keeper.state()["pid"]
        hook = [sys.executable, "-m", *LEAVE]
        subprocess.run(hook, env={**os.environ, variable("data"): str(root)}, check=True, timeout=60)
        assert listed(servers[1]) == before
        assert not _runs(pid)
        time.sleep(4 * LOOK_S)
        assert (keeper.state()["pid"], keeper.state()["starts"]) == (0, 1)
    finally:
        keeper.end()


def test_servers_with_tls_trust_only_their_authorities(
    nodes: Nodes, servers: list[Lab], tmp_path: Path
) -> None:
    right = {tenant: embed(servers[0], tenant) for tenant in TENANTS}
    for lab in servers:
        assert lab.server is not None
        lab.server.terminate()
    assert [lab.server.wait(60) for lab in servers if lab.server] == [0, 0, 0]
    ours, theirs = (Authority.create(tmp_path / name) for name in ("ours", "theirs"))

    def started(name: str, trusts: Authority) -> Lab:
        cert, key = ours.issue(name)
        files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": ours.file, "node_ca": trusts.file}
        flags = [part for name, file in files.items() for part in (flag(name), str(file))]
        flags += [flag("grpc_port"), str(free_port())]
        return nodes.start(name, "replica", *flags, trusted=ours.file, shown=ours.both(f"{name}-client"))

    pair = trusting, mistaken = started("fourth", ours), started("fifth", theirs)
    wait_until(lambda: all(len(listed(lab)) == 2 for lab in pair))
    for lab, other in (pair, pair[::-1]):
        assert {tenant: embed(lab, tenant) for tenant in TENANTS} == right
        assert {tenant: embed_by_message(lab, tenant) for tenant in TENANTS} == right
        tenant = next(name for name in map("x{}".format, count()) if owner(list(pair), name) is other)
        with pytest.raises(HmiError, match="there is no model"):
            embed(lab, tenant)
    assert view(trusting)["passed"] > 0
    assert view(trusting)["passed"] == view(mistaken)["answered"]
    assert view(mistaken)["passed"] == 0
    assert "does not answer (TLS fails, see node_ca" in (mistaken.work / "server.log").read_text()
    assert "TLS" not in (trusting.work / "server.log").read_text()


def refused_to_lead(lab: Lab) -> HmiError:
    with pytest.raises(HmiError) as error:
        lab.client.request("POST", "/manage/server/lead")
    return error.value
