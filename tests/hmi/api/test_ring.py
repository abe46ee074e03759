"""Which server answers a tenant: as rendezvous hashing says, and with the bound on waiting."""

from __future__ import annotations

from collections import Counter

import pytest

from hmi.api.nodes.ring import FULL_S, NARROW_S, WIDEN_S, Ring, ranked

SERVERS = {f"{i:016x}": f"http://10.0.0.{i}:8080" for i in range(5)}
TENANTS = [f"tenant-{i}" for i in range(5000)]


def ring(me: str = "0" * 16) -> Ring:
    found = Ring(me)
    found.set(SERVERS)
    return found


def test_all_servers_agree_and_share_alike() -> None:
    firsts = Counter(ring(me).choose(tenant, 0.0, 0.0) for me in SERVERS for tenant in TENANTS[:500])
    assert {count % len(SERVERS) for count in firsts.values()} == {0}, "each of them names the same server"
    firsts = Counter(ranked(tenant, list(SERVERS))[0] for tenant in TENANTS)
    for count in firsts.values():  # 1000 on average, with a standard deviation of 28
        assert 860 < count < 1140


@pytest.mark.parametrize("gone", list(SERVERS))
def test_one_that_goes_moves_only_its_own_tenants(gone: str) -> None:
    left = [server for server in SERVERS if server != gone]
    for tenant in TENANTS[:1000]:
        before, after = ranked(tenant, list(SERVERS)), ranked(tenant, left)
        assert after == [server for server in before if server != gone]


def of_another() -> tuple[str, list[str]]:
    """A tenant that other servers than the asking one come first for, and its order."""
    orders = ((tenant, ranked(tenant, list(SERVERS))) for tenant in TENANTS)
    return next((tenant, order) for tenant, order in orders if "0" * 16 not in order[:3])


def test_a_full_server_passes_only_that_tenant_on() -> None:
    found, at = ring(), 100.0
    tenant, (first, second, *_) = of_another()
    other = next(t for t in TENANTS if t != tenant and ranked(t, list(SERVERS))[0] == first)
    found.heard(first, tenant, FULL_S + 2.0, at)
    for _ in range(6):
        assert found.choose(other, 0.0, at) == first
        assert found.choose(tenant, 0.0, at) == second
    assert found.choose(tenant, 0.0, at + 2.01) == first, "by then it has answered what waited"
    found.heard(first, tenant, FULL_S + 2.0, at)
    found.heard(first, tenant, 0.0, at + 0.1)
    assert found.choose(tenant, 0.0, at + 0.1) == first


def test_as_many_servers_answer_a_tenant_as_its_calls_need() -> None:
    found, at = ring(), 100.0
    tenant, order = of_another()

    def answer(waits_s: float, seconds: float) -> Counter[str]:
        """Let servers say for some seconds what a call waits. Returns who is asked then."""
        nonlocal at
        until = at + seconds
        while at < until:
            found.heard(order[0], tenant, waits_s, at)
            at += WIDEN_S / 2
        found.heard(order[0], tenant, 0.0, at)
        return Counter(found.choose(tenant, 0.0, at) for _ in range(60))

    assert answer(FULL_S, NARROW_S) == {order[0]: 60}
    assert answer(FULL_S + 0.1, WIDEN_S) == {order[0]: 60}, "that was a moment"
    assert answer(FULL_S + 0.1, 2.5 * WIDEN_S) == dict.fromkeys(order[:3], 20)
    assert answer(FULL_S, 3 * NARROW_S) == dict.fromkeys(order[:3], 20), "fewer would be too few"
    assert answer(0.0, NARROW_S + 1.0) == dict.fromkeys(order[:2], 30)
    assert answer(0.0, NARROW_S + 1.0) == {order[0]: 60}
    assert answer(9.0, 60.0).keys() == set(SERVERS)
    found.set(dict(list(SERVERS.items())[:2]))
    answer(0.0, NARROW_S + 1.0)
    assert answer(0.0, NARROW_S + 1.0) == {next(one for one in order if one in found.servers): 60}


def test_tenants_on_several_servers_take_turns_apart() -> None:
    found, at = ring(), 100.0
    (one, first), (other, second) = ((t, ranked(t, list(SERVERS))) for t in TENANTS[:2])
    for tenant, order in ((one, first), (other, second)):
        for step in range(3):
            found.heard(order[0], tenant, FULL_S + 0.1, at + step * WIDEN_S / 2)
        found.heard(order[0], tenant, 0.0, at + WIDEN_S)
    asked = Counter(
        (tenant, found.choose(tenant, 0.0, at + 1.0)) for _ in range(10) for tenant in (one, other)
    )
    assert len(asked) == 4
    assert set(asked.values()) == {5}


def test_what_is_past_is_forgotten() -> None:
    found, at = ring(), 100.0
    for step in range(20):
        for tenant in TENANTS:
            found.heard("1".rjust(16, "0"), f"{tenant}-{step}", FULL_S + 0.1, at + 60.0 * step)
    assert len(found._wide) <= 3 * len(TENANTS)
    assert len(found._free_at) <= 3 * len(TENANTS)


def test_a_server_passes_on_what_is_too_much_for_itself() -> None:
    tenant = next(t for t in TENANTS if ranked(t, list(SERVERS))[0] == "0" * 16)
    assert ring().choose(tenant, FULL_S, 0.0) == "0" * 16
    assert ring().choose(tenant, FULL_S + 0.01, 0.0) == ranked(tenant, list(SERVERS))[1]


def test_a_server_that_is_away_is_left_out_until_it_is_found() -> None:
    found, at = ring(), 100.0
    tenant, (first, second, *_) = of_another()
    found.failed(first)
    assert found.choose(tenant, 0.0, at + 1e6) == second
    assert set(found.away) == {first}
    found.set({**SERVERS, "new": "http://10.0.0.9:8080"})
    assert found.choose(tenant, 0.0, at) != first
    found.found(first)
    assert found.choose(tenant, 0.0, at) in (first, "new")
    found.failed(first)
    found.heard(first, tenant, 0.0, at)
    assert not found.away, "it has answered a call"
    found.failed(first)
    found.set({one: url for one, url in SERVERS.items() if one != first})
    assert not found.away


def test_without_another_server_it_is_this_one() -> None:
    found, at = ring(), 100.0
    for server in SERVERS:
        found.failed(server)
    assert all(found.choose(tenant, 9.0, at) == "0" * 16 for tenant in TENANTS[:50])
    assert Ring("me").choose("acme", 9.0, at) == "me", "no server is listed"
    alone = Ring("me")
    alone.set({"me": "http://127.0.0.1:1"})
    assert alone.choose("acme", 9.0, at) == "me"


def test_one_that_is_not_listed_passes_all_calls_on() -> None:
    leaving = Ring("me")
    leaving.set(SERVERS)
    assert "me" not in {leaving.choose(tenant, 0.0, 0.0) for tenant in TENANTS[:100]}
