"""Which server answers a tenant: as rendezvous hashing says, and with the bound on waiting."""

from __future__ import annotations

from collections import Counter

import pytest

from hmi.api.nodes.ring import AWAY_S, FULL_S, Ring, ranked

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


def test_a_full_server_passes_only_that_tenant_on() -> None:
    found, at = ring(), 100.0
    tenant = next(t for t in TENANTS if ranked(t, list(SERVERS))[0] != "0" * 16)
    first, second, third = ranked(tenant, list(SERVERS))[:3]
    other = next(t for t in TENANTS if t != tenant and ranked(t, list(SERVERS))[0] == first)
    found.heard(first, tenant, FULL_S + 2.0, at)
    assert found.choose(other, 0.0, at) == first
    assert found.choose(tenant, 0.0, at) == second
    if second != "0" * 16:
        found.heard(second, tenant, FULL_S + 9.0, at)
        assert found.choose(tenant, 0.0, at) == third
    assert found.choose(tenant, 0.0, at + 2.01) == first, "by then it has answered what waited"
    found.heard(first, tenant, FULL_S + 2.0, at)
    found.heard(first, tenant, 0.0, at + 0.1)
    assert found.choose(tenant, 0.0, at + 0.1) == first


def test_a_server_passes_on_what_is_too_much_for_itself() -> None:
    tenant = next(t for t in TENANTS if ranked(t, list(SERVERS))[0] == "0" * 16)
    assert ring().choose(tenant, FULL_S, 0.0) == "0" * 16
    assert ring().choose(tenant, FULL_S + 0.01, 0.0) == ranked(tenant, list(SERVERS))[1]


def test_a_server_that_is_away_is_asked_again() -> None:
    found, at = ring(), 100.0
    tenant = next(t for t in TENANTS if ranked(t, list(SERVERS))[0] != "0" * 16)
    first, second = ranked(tenant, list(SERVERS))[:2]
    found.failed(first, at)
    assert found.choose(tenant, 0.0, at + AWAY_S - 0.1) == second
    assert found.choose(tenant, 0.0, at + AWAY_S) == first
    found.failed(first, at)
    assert found.choose(tenant, 0.0, at + 2 * AWAY_S - 0.1) == second
    assert found.choose(tenant, 0.0, at + 2 * AWAY_S) == first
    found.heard(first, tenant, 0.0, at)
    found.failed(first, at)
    assert found.choose(tenant, 0.0, at + AWAY_S) == first


def test_without_another_server_it_is_this_one() -> None:
    found, at = ring(), 100.0
    for server in SERVERS:
        found.failed(server, at)
    assert all(found.choose(tenant, 9.0, at) == "0" * 16 for tenant in TENANTS[:50])
    assert Ring("me").choose("acme", 9.0, at) == "me", "no server is listed"
    alone = Ring("me")
    alone.set({"me": "http://127.0.0.1:1"})
    assert alone.choose("acme", 9.0, at) == "me"


def test_one_that_is_not_listed_passes_all_calls_on() -> None:
    leaving = Ring("me")
    leaving.set(SERVERS)
    assert "me" not in {leaving.choose(tenant, 0.0, 0.0) for tenant in TENANTS[:100]}
