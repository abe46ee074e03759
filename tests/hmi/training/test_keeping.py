"""Values of rows are computed once, and kept within their room."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.training.fit.row_cache import RowCache


def test_values_are_computed_once_and_given_in_order() -> None:
    asked: list[int] = []

    def compute(rows: Sequence[int]) -> list[str]:
        asked.extend(rows)
        return [str(row) for row in rows]

    kept = RowCache(compute, len)
    assert kept([2, 0]) == ["2", "0"]
    assert kept([0, 1, 2]) == ["0", "1", "2"]
    assert kept([]) == []
    assert asked == [2, 0, 1]


def test_what_has_no_room_is_computed_again() -> None:
    asked: list[int] = []

    def compute(rows: Sequence[int]) -> list[str]:
        asked.extend(rows)
        return ["x" * (row + 1) for row in rows]

    kept = RowCache(compute, len, most=3)
    assert kept([1, 4, 0]) == ["xx", "xxxxx", "x"]  # 2 + 1 bytes are kept, 5 have no room
    assert kept([0, 1, 4]) == ["x", "xx", "xxxxx"]
    assert asked == [1, 4, 0, 4]


def test_cheap_values_are_let_go_where_less_than_half_fits() -> None:
    asked: list[int] = []

    def compute(rows: Sequence[int]) -> list[str]:
        asked.extend(rows)
        return ["xx"] * len(rows)

    kept = RowCache(compute, len, most=4, cheap=True)
    assert kept([0, 1, 2, 3]) == kept([0, 1, 2, 3]) == ["xx"] * 4  # as much is kept as has no room
    assert asked == [0, 1, 2, 3, 2, 3]
    assert kept([4]) == ["xx"]
    assert kept([0, 1]) == kept([0, 1]) == ["xx"] * 2
    assert asked[6:] == [4, 0, 1, 0, 1]
