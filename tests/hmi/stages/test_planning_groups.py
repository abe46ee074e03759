"""Groups never mix texts that violate a bound, and their sums are those of their members."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.planning.group import BEYOND, FAR_S, GroupLimits, Member, Price
from hmi.stages.planning.groups import Groups

LIMITS = GroupLimits(texts=5, seconds=0.02)


def member(arrived: float, wait_s: float, utility: float, seconds: float = 1e-3) -> Member:
    return Member(
        "t", arrived, arrived + wait_s, utility, Price((utility, 0.9 * utility), (seconds, seconds / 2))
    )


TEXTS = st.builds(
    member,
    st.integers(0, 12).map(lambda tick: tick / 5),
    st.sampled_from([0.1, 0.4, 0.9, 1.3, math.inf]),
    st.sampled_from([0.01, 0.2, 0.3, 0.5, 1.0]),
    st.sampled_from([1e-3, 6e-3, 3e-2]),
)


def holds(groups: Groups, limits: GroupLimits) -> None:
    """No two texts of a group violate a bound, and its sums are its members'."""
    for group in groups:
        members = list(group)
        assert 1 <= len(members) <= limits.texts
        for a, b in combinations(members, 2):
            assert abs(a.arrived - b.arrived) <= limits.wait_s + 1e-9
            assert abs(a.due - b.due) <= limits.deadline_s + 1e-9
            assert abs(a.utility - b.utility) <= limits.utility + 1e-9
            assert math.isinf(a.deadline) == math.isinf(b.deadline)
        factor = BEYOND if group.beyond else 1.0
        for s in range(2):
            assert group.values[s] == pytest.approx(factor * sum(m.price.values[s] for m in members))
            assert group.seconds[s] == pytest.approx(sum(m.price.seconds[s] for m in members))
        assert min(group.seconds) <= limits.seconds + 1e-9 or len(members) == 1
        assert group.deadline == min(m.deadline for m in members)
        assert group.due == min(m.due for m in members)
        assert sum(group.modules.values()) == len(members)
        assert groups.find(group.key, group.id) is group


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers(0, 3), st.booleans()), max_size=30), st.randoms())
def test_a_group_never_mixes_texts_that_violate_a_bound(
    texts: list[tuple[Member, int, bool]], random: object
) -> None:
    groups, where = Groups(LIMITS), []
    for text, removes, beyond in sorted(texts, key=lambda each: each[0].arrived):
        where.append((groups.add("key", text, beyond=beyond), text))
        for _ in range(min(removes, len(where) - 1)):
            groups.remove(*where.pop(random.randrange(len(where))))  # type: ignore[attr-defined]
        holds(groups, LIMITS)
        assert sum(map(len, groups)) == len(where)
    for group, text in where:
        groups.remove(group, text)
    assert len(groups) == 0
    assert groups.of("key") == ()


def test_deadlines_do_not_drift_apart() -> None:
    groups = Groups(GroupLimits(deadline_s=0.5))
    ids = [groups.add("key", member(0.0, wait, 1.0)).id for wait in (10.0, 9.5, 9.0, 8.5)]
    assert ids[0] == ids[1] != ids[2] == ids[3]  # Algorithm 1 as printed has them in one


def test_a_text_joins_the_newest_group_that_takes_it() -> None:
    groups = Groups(GroupLimits(texts=2))
    first = groups.add("key", member(0.0, 1.0, 0.3))
    assert groups.add("other", member(0.0, 1.0, 0.3)) is not first
    assert groups.add("key", member(0.0, 1.0, 0.3), beyond=True) is not first
    assert groups.add("key", member(0.0, 1.0, 1.0)) is not first
    assert groups.add("key", member(0.1, 1.0, 0.3)) is first
    assert groups.add("key", member(0.1, 1.0, 0.3)) is not first
    assert len(groups) == 5
    closed = groups.of("key")[-1]
    groups.close(closed)
    assert groups.add("key", member(0.1, 1.0, 0.3)) is not closed


def test_a_value_that_is_not_allowed_comes_and_goes_with_its_text() -> None:
    groups = Groups()
    plain, strict = member(0.0, 1.0, 0.3), member(0.0, 1.0, 0.3)
    strict.price = Price((0.3, -math.inf), (1e-3, 1e-3))
    group = groups.add("key", plain)
    assert groups.add("key", strict) is group
    assert group.values[1] == -math.inf
    groups.remove(group, strict)
    assert group.values == pytest.approx([0.3, 0.27])


def test_a_text_without_a_deadline_has_a_place_in_their_order() -> None:
    group = Groups().add("key", member(5.0, math.inf, 0.5))
    assert group.deadline == math.inf
    assert group.due == 5.0 + FAR_S
