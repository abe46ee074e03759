from __future__ import annotations

import threading

from hmi.engine.writing.right_of_way import RightOfWay


def test_what_is_written_waits_until_the_last_call_has_left() -> None:
    times, gone = (iter([0.0, *[3600.0] * 9]), threading.Event())  # an hour
    way = RightOfWay(needed=True, clock=lambda: next(times))
    way.begin()

    def write() -> None:
        way.give()
        gone.set()

    with way:
        thread = threading.Thread(target=write, daemon=True)
        with way:
            thread.start()
        assert not gone.wait(0.05)
        assert way.flag[0] == 1
    assert gone.wait(60)
    thread.join()
    way.give()  # nothing is in flight


def test_it_waits_no_longer_than_it_has_run_and_not_at_all_beside_free_processors() -> None:
    way = RightOfWay(needed=True)
    with way:
        way.begin()
        for _ in range(5):
            way.give()  # returns although the call stays
        assert way.flag[0] == 1
    way = RightOfWay(needed=False)
    with way:
        assert way.flag[0] == 0
        way.give()
