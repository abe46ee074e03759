"""Builds at another store than the one that publishes: versions apart from their refs; unfinished builds."""

from __future__ import annotations

import json

import numpy as np
import plotlab as lab
import pytest
from remotelab import Place
from test_store_fetching import through
from test_store_remote_ids import same_rows

from plot_store import Conflict, Damaged, Invalid, Store
from plot_store.remote.objects import open_objects


def apart(store: Store, made: lab.Content, build: str, *, extend: bool = True) -> str:
    """Build a version of r/a apart from the ref, and return its id."""
    schema = lab.schema()
    with store.writer("r/a", schema=schema, build=build, extend=extend, segment_bytes=1 << 15) as writer:
        for order, (ngrams, rows) in made.items():
            writer.add(order, ngrams, rows)
        return writer.publish(apart=True).id


def test_another_store_publishes_what_was_built_apart(store: Store, other: Store, url: str) -> None:
    lab.put(store, "r", lab.content(0))
    first = lab.put(store, "r/a", lab.content(1)).id
    store.push("r/a", url)
    other.pull("r/a", url)
    made = apart(other, lab.content(2), "b1")
    assert other.version("r/a").id == first
    assert [pin.version for pin in other.pins() if pin.owner == "b1"] == [made]
    other.gc(keep_versions=1, orphan_age_s=-60)
    other.push(made, url)
    reads = store.fetching(url)
    assert reads.publish(made).id == store.version("r/a").id == made
    assert reads.publish(made).id == made
    assert [version.id for version in store.history("r/a")] == [made, first]
    assert not store.pins()
    same_rows(other, store, made)
    store.push("r/a", url)
    assert other.pull("r/a", url).version.id == made
    with pytest.raises(Invalid, match="not a version's id"):
        reads.publish("r/a")
    for checked in (store, other):
        lab.check(checked)


def test_a_version_apart_does_not_replace_one_that_it_does_not_know(
    store: Store, other: Store, url: str
) -> None:
    lab.put(store, "r", lab.content(0))
    lab.put(store, "r/a", lab.content(1))
    store.push("r/a", url)
    other.pull("r/a", url)
    made = apart(other, lab.content(2), "b1")
    other.push(made, url)
    later = lab.put(store, "r/a", lab.content(3)).id
    with pytest.raises(Conflict, match="build it again"):
        store.fetching(url).publish(made)
    assert store.version("r/a").id == later


@pytest.mark.parametrize("extend", [False, True])
def test_another_store_goes_on_with_a_build(store: Store, other: Store, url: str, extend: bool) -> None:
    lab.put(store, "r", lab.content(0))
    lab.put(store, "r/a", lab.content(1))
    store.push("r/a", url)
    other.pull("r/a", url)
    ngrams, rows = lab.content(2)[3]
    half = len(ngrams) // 2
    assert store.fetching(url).put_build("b1") is None
    with store.writer("r/a", schema=lab.schema(), build="b1", extend=extend, segment_bytes=1 << 14) as writer:
        writer.add(3, ngrams[:half], rows[:half])
    stored = json.loads(json.dumps(store.fetching(url).put_build("b1")))
    assert stored["segments"]
    place = Place(open_objects(url))
    through(store, place).put_build("b1")
    assert "put" not in place.calls, "nothing is sent twice"
    other.fetching(url).take_build("b1", stored)
    with other.writer("r/a", schema=lab.schema(), build="b1", extend=extend, segment_bytes=1 << 14) as writer:
        done = writer.resume_point(3)
        assert done == sum(segment["count"] for segment in stored["segments"])
        assert done > 0
        writer.add(3, ngrams[done:], rows[done:])
        made = writer.publish()
    with store.writer("r/a", schema=lab.schema(), build="b2", extend=extend) as writer:
        writer.add(3, ngrams, rows)
        wanted = writer.publish()
    with store.reader(wanted.id) as mine, other.reader(made.id) as theirs:
        assert np.array_equal(mine.ngrams(3), theirs.ngrams(3))
        for one, another in zip(mine.get(3, ngrams), theirs.get(3, ngrams), strict=True):
            assert np.array_equal(one, another)
    lab.check(other)


def test_a_build_whose_segments_are_gone_is_not_taken(store: Store, other: Store, url: str) -> None:
    lab.put(store, "r", lab.content(0))
    store.push("r", url)
    other.pull("r", url)
    ngrams, rows = lab.content(2)[3]
    with store.writer("r/a", schema=lab.schema(), build="b1", segment_bytes=1 << 14) as writer:
        writer.add(3, ngrams, rows)
    stored = store.fetching(url).put_build("b1")
    assert stored is not None
    open_objects(url).remove([f"segments/{stored['segments'][0]['name']}"])
    with pytest.raises(Damaged):
        other.fetching(url).take_build("b1", stored)
    with pytest.raises(Damaged):
        other.fetching(url).take_build("b1", {"segments": 7})
    with other.writer("r/a", schema=lab.schema(), build="b1") as writer:
        assert writer.resume_point(3) == 0
    lab.check(other)
