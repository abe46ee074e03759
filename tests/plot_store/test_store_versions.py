"""What keeps a version from collection: tags, pins, leases and age; and what gc reports."""

from __future__ import annotations

import time

import plotlab as lab
import pytest

from plot_store import Collected, Conflict, InUse, Invalid, NotFound, Store
from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn


def three(store: Store) -> list[str]:
    return [lab.put(store, "r", lab.content(seed)).id for seed in (1, 2, 3)]


def test_a_tag_names_one_version_wherever_a_version_is_asked_for(store: Store, tmp_path: object) -> None:
    first, second, third = three(store)
    assert store.tag("r", "good", first) == first
    assert store.tag("r", "good", first) == first  # a second time changes nothing
    assert store.tag("r", "Now-1.0_x") == third
    assert store.tags() == store.tags("r") == {"r@Now-1.0_x": third, "r@good": first}
    assert store.version("r@good").id == first
    assert store.chain("r@good")[0].id == first
    with store.reader("r@good") as reader:
        lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
    assert lab.put(store, "r/a", lab.content(4), parent="r@good").parent == first
    assert store.rollback("r", "r@good").id == store.version("r").id == first
    assert store.pin("r@good", "me").version == first
    store.export("r@good", store.path.parent / "x.plot")
    assert Store.archived(store.path.parent / "x.plot")[0].id == first
    with pytest.raises(Conflict, match="untag it first"):
        store.tag("r", "good", second)
    lab.check(store)


def test_wrong_tags_are_refused(store: Store) -> None:
    three(store)
    stranger = lab.put(store, "s", {})
    for ref, name, version, error in (
        ("r", "a b", None, Invalid),
        ("r", "", None, Invalid),
        ("r", "x/y", None, Invalid),
        ("r", "t", stranger.id, Invalid),
        ("r", "t", "v" + "0" * 32, NotFound),
        ("nobody", "t", None, NotFound),
    ):
        with pytest.raises(error):
            store.tag(ref, name, version)
    assert store.tags() == {}
    for text in ("r@none", "nobody@x"):
        with pytest.raises(NotFound, match="there is no tag"):
            store.version(text)
    with pytest.raises(Invalid, match="not a tag"):
        store.version("r@")
    assert store.untag("r", "t") is False


def test_the_longest_ref_and_tag(store: Store) -> None:
    """Each is legal alone. Together they are refused before they form a key that
    the catalogue cannot hold."""
    ref = "/".join(["a" * 63] * 7)
    for part in range(1, 8):
        lab.put(store, "/".join(["a" * 63] * part), {})
    tip = store.version(ref)
    for size in (63, 60):
        tag = "t" * size
        for call in (
            lambda tag=tag: store.tag(ref, tag),
            lambda tag=tag: store.untag(ref, tag),
            lambda tag=tag: store.version(f"{ref}@{tag}"),
            lambda tag=tag: store.rollback(ref, f"{ref}@{tag}"),
        ):
            with pytest.raises(Invalid, match="choose a shorter tag"):
                call()
    assert store.tag(ref, "t" * 59) == tip.id
    assert store.version(f"{ref}@{'t' * 59}") == tip
    assert store.tag("a" * 63, "t" * 63) == store.version("a" * 63).id
    assert len(store.tags()) == 2
    assert store.untag(ref, "t" * 59)
    lab.check(store)


def around(store: Store, refs: list[str]) -> None:
    """Refs in a circle: by rollbacks, each falls back on an older version of the next."""
    lab.put(store, "w", {})
    first = {ref: lab.put(store, ref, {}, parent="w").id for ref in refs}
    second = {}
    for ref, following in zip(refs, [*refs[1:], refs[0]], strict=True):
        second[ref] = lab.put(store, ref, lab.content(1), parent=first[following]).id
        store.rollback(ref, first[ref])
    for ref in refs:
        store.rollback(ref, second[ref])


@pytest.mark.parametrize("refs", [["x", "y"], ["x", "y", "z"]])
def test_refs_that_fall_back_on_each_other_can_be_deleted(store: Store, refs: list[str]) -> None:
    around(store, refs)
    assert store.children(refs[1]) == [refs[0]]
    lab.put(store, "leaf", {}, parent="x")
    with pytest.raises(InUse, match="parent of leaf"):
        store.delete("x")  # none of the circle holds another; a ref outside does
    store.delete("leaf")
    kept = store.version(refs[-1])
    for ref in refs[:-1]:
        store.delete(ref)
        with store.reader(refs[-1]) as reader:
            assert reader.version == kept
            lab.same_as(reader, [lab.entries(lab.content(1)), {}, {}], lab.texts(1))
        store.gc(orphan_age_s=-60)
        lab.check(store)
    store.delete(refs[-1])
    store.delete("w")
    store.gc(orphan_age_s=-60)
    assert store.info().versions == 0
    lab.check(store)


def test_the_cycle_that_once_held_two_refs_for_ever(store: Store) -> None:
    lab.put(store, "x", {})
    first = lab.put(store, "y", {}, parent="x")
    lab.put(store, "w", {})
    lab.put(store, "y", {}, parent="w")
    lab.put(store, "x", {}, parent="y")
    store.rollback("y", first.id)
    assert (store.children("x"), store.children("y")) == (["y"], ["x"])
    store.delete("y")
    store.delete("x")
    store.delete("w")
    lab.check(store)


def test_tags_keep_versions_and_their_refs(store: Store) -> None:
    first, second, third = three(store)
    store.tag("r", "good", first)
    report = store.gc(keep_versions=1)
    assert report.versions == (second,)
    assert report.kept[first] == ("tag r@good",)
    assert [v.id for v in store.history("r")] == [third, first]
    assert store.rollback("r", first).id == first
    with pytest.raises(InUse, match="r@good"):
        store.delete("r")
    assert store.untag("r", "good") is True
    store.delete("r")
    assert set(store.gc().versions) == {first, third}
    lab.check(store)


def test_pins_hold_across_processes_and_without_a_ref(store: Store) -> None:
    first, _, _ = three(store)
    pin = store.pin(first, "job:17")
    assert (pin.version, pin.owner) == (first, "job:17")
    assert store.pin(first, "job:17") == pin  # a second time gives the same
    store.pin(first, "other")
    assert [(p.version, p.owner) for p in store.pins()] == [(first, "job:17"), (first, "other")]
    store.delete("r")
    done = lab.child(
        "import sys\nfrom plot_store import Store\nwith Store.open(sys.argv[1]) as s: print(*s.gc().kept)",
        store.path,
    )
    assert done.stdout.split() == [first], done.stderr
    with store.reader(first) as reader:
        lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
    assert store.unpin(first, "job:17")
    assert not store.unpin(first, "job:17")
    assert store.gc().versions == ()
    assert store.unpin(first, "other")
    assert store.gc().versions == (first,)
    with pytest.raises(Collected):
        store.pin(first, "late")
    with pytest.raises(NotFound):
        store.pin("v" + "1" * 32, "late")
    with pytest.raises(Invalid, match="owner"):
        store.pin(lab.put(store, "s", {}).id, "")
    lab.check(store)


def test_a_lease_holds_until_it_ends(store: Store) -> None:
    first, second, _ = three(store)
    lease = store.lease(first, 60, "a")
    store.lease(second, 0.01, "b")
    time.sleep(0.02)
    assert [(x.version, x.owner) for x in store.leases()] == [(first, "a")]
    # The second lease has expired, and its record goes too.
    assert store.gc(keep_versions=1).versions == (second,)
    assert lease.expires > time.time() + 30
    lease.renew(0.01)
    time.sleep(0.02)
    lease.renew()  # expired, but not yet collected
    assert lease.expires > time.time() + 30
    assert store.gc(keep_versions=1).kept[first] == ("leased by a",)
    lease.release()
    lease.release()
    assert store.gc(keep_versions=1).versions == (first,)
    with pytest.raises(Collected):
        lease.renew()
    for ttl in (0, -1, float("nan")):
        with pytest.raises(Invalid, match="ttl_s"):
            store.lease("r", ttl, "a")
    with store.lease("r", 60) as held:
        assert held.owner == "anonymous"
        assert len(store.leases()) == 1
    assert store.leases() == []
    lab.check(store)


def age(store: Store, version_id: str, days: float) -> None:
    """Make a version `days` old."""

    def body(txn: CatalogueTxn) -> None:
        raw = txn.get(version_tree.NODE + version_id)
        assert raw is not None
        txn.put(version_tree.NODE + version_id, {**raw, "at": time.time() - days * 86400})

    store._env().catalogue.write(body)


def test_of_count_and_days_the_longer_wins(store: Store) -> None:
    ids = [lab.put(store, "r", lab.content(seed)).id for seed in range(6)]
    for version_id, days in zip(ids, (50, 40, 6, 5, 4, 3), strict=True):
        age(store, version_id, days)
    assert set(store.gc(dry_run=True, keep_versions=1, keep_days=7).versions) == set(ids[:2])
    assert set(store.gc(dry_run=True, keep_versions=5, keep_days=7).versions) == {ids[0]}
    report = store.gc(keep_versions=1, keep_days=4.5)
    assert set(report.versions) == set(ids[:4])
    assert report.kept[ids[5]] == ("current of r", "one of the newest 1 of r", "younger than 4.5 days")
    assert report.kept[ids[4]] == ("younger than 4.5 days",)
    with pytest.raises(Invalid, match="keep_days"):
        store.gc(keep_days=-1)


def test_a_dry_run_gives_every_reason(store: Store) -> None:
    root, old, _ = three(store)
    leaf = lab.put(store, "r/a", {}, parent=root).id
    made = lab.content(3, (1500, 0, 0))
    with store.writer("r/b", schema=lab.schema(), build="slow", parent=old) as writer:
        writer.add(3, *made[3])
    with store.reader("r/a"):
        kept = store.gc(dry_run=True, keep_versions=1, keep=[old]).kept
        assert kept[leaf] == ("current of r/a", "one of the newest 1 of r/a", "a reader of this process")
        assert kept[root] == (f"the parent of {leaf}",)
        assert kept[old] == ("named by the caller", "the base of build slow")


def test_versions_of_format_1_are_walked_and_collected_too(store: Store) -> None:
    """They have no small records besides their manifests."""
    first, _, third = three(store)
    leaf = lab.put(store, "r/a", lab.content(9))

    def body(txn: CatalogueTxn) -> None:
        for version_id in txn.keys(version_tree.VERSION):
            txn.delete(version_tree.NODE + version_id)
            txn.delete(version_tree.NAMES + version_id)

    store._env().catalogue.write(body)
    assert store.children("r") == ["r/a"]
    with pytest.raises(InUse):
        store.delete("r")
    assert first in store.gc(keep_versions=1, orphan_age_s=-60).versions
    lab.check(store)
    with store.reader("r/a") as reader:
        chain = [lab.entries(lab.content(9)), lab.entries(lab.content(3))]
        assert reader.chain[1].id == leaf.parent == third
        lab.same_as(reader, chain, lab.texts(1))


def test_walking_the_tree_reads_no_manifest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    three(store)
    for name in ("r/a", "r/b", "r/a/x"):
        lab.put(store, name, {})
    parsed: list[object] = []
    real = version_tree.records.parse_version
    monkeypatch.setattr(version_tree.records, "parse_version", lambda raw: parsed.append(raw) or real(raw))
    assert store.children("r") == ["r/a", "r/a/x", "r/b"]
    assert store.children("r/a") == ["r/a/x"]
    with pytest.raises(InUse):
        store.delete("r")
    assert len(store.gc(keep_versions=1).versions) == 2
    assert parsed == []
