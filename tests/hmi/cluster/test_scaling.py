"""How many servers a cluster is to have, second by second."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hmi.cluster.keeper import _free_place
from hmi.cluster.scaling import DOWN_AFTER_S, UP_AFTER_S, Scaling


def wanted(
    scaling: Scaling, servers: int, wait_s: float, busy: float, begin: int, seconds: float
) -> list[int]:
    """The decisions of some seconds in which nothing changes."""
    return [
        scaling.decide([wait_s] * servers, [busy] * servers, float(begin + second))
        for second in range(int(seconds) + 1)
    ]


def test_more_servers_come_when_texts_have_waited_for_a_while() -> None:
    scaling = Scaling(2, 9)
    assert wanted(scaling, 4, 1.0, 1.0, 0, UP_AFTER_S) == [4] * int(UP_AFTER_S) + [6]
    assert wanted(scaling, 6, 1.0, 1.0, 100, UP_AFTER_S)[-1] == 9
    assert set(wanted(scaling, 9, 1.0, 1.0, 200, 5 * UP_AFTER_S)) == {9}, "no more than that"


def test_a_moment_of_waiting_changes_nothing() -> None:
    scaling = Scaling(2, 9)
    for turn in range(20):
        assert set(wanted(scaling, 4, 1.0, 1.0, 100 * turn, UP_AFTER_S - 1)) == {4}
        assert set(wanted(scaling, 4, 0.0, 0.9, 100 * turn + 50, 2)) == {4}


def test_one_server_goes_if_the_others_would_not_be_busy() -> None:
    scaling = Scaling(2, 9)
    assert wanted(scaling, 4, 0.0, 0.4, 0, DOWN_AFTER_S) == [4] * int(DOWN_AFTER_S) + [3]
    # Three servers at .53 would make two at .8.
    assert set(wanted(scaling, 3, 0.0, 0.53, 1000, 3 * DOWN_AFTER_S)) == {3}
    assert wanted(scaling, 2, 0.0, 0.0, 9000, DOWN_AFTER_S)[-1] == 2, "no fewer than that"


def test_without_servers_the_least_are_wanted() -> None:
    assert Scaling(3, 9).decide([], [], 0.0) == 3


def test_each_keeper_has_a_place_of_its_own(tmp_path: Path) -> None:
    first, lock = _free_place(tmp_path)
    second, other = _free_place(tmp_path)
    assert (first, second) == (1, 2)
    os.close(lock)
    assert _free_place(tmp_path)[0] == 1
    os.close(other)


@pytest.mark.parametrize("bounds", [(1, 1), (3, 3)])
def test_equal_bounds_fix_the_number(bounds: tuple[int, int]) -> None:
    scaling = Scaling(*bounds)
    assert set(wanted(scaling, bounds[0], 9.0, 1.0, 0, 5 * UP_AFTER_S)) == {bounds[0]}
