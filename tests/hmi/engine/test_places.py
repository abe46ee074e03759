"""Places for texts: a tenant alone has all, and nobody waits for the texts of a tenant that has more."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hmi.engine.writing.places import Places


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def taking(places: Places, tenant: str, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(places.take(tenant)) for _ in range(count)]
    await settle()
    return tasks


async def has(tasks: list[asyncio.Task[None]]) -> int:
    await settle()
    return sum(task.done() and not task.cancelled() for task in tasks)


async def end(*lines: list[asyncio.Task[None]]) -> None:
    for line in lines:
        for task in line:
            task.cancel()
    await settle()


async def test_a_tenant_alone_has_all_and_later_ones_have_their_shares_at_once() -> None:
    places = Places(12)
    one, two = await taking(places, "one", 20), await taking(places, "two", 20)
    assert (await has(one), await has(two)) == (12, 6)
    three, four = await taking(places, "three", 3), await taking(places, "four", 9)
    assert (await has(three), await has(four)) == (3, 3)
    assert (places.taken, places.waiting) == (24, 8 + 14 + 6)
    await end(one, two, three, four)
    assert places.waiting == 0


async def test_a_place_that_is_free_goes_to_the_tenant_that_has_the_fewest() -> None:
    places = Places(6)
    one, two = await taking(places, "one", 8), await taking(places, "two", 5)
    assert (await has(one), await has(two)) == (6, 3)
    for _ in range(3):
        places.give_back("one")
    assert (await has(one), await has(two)) == (6, 3), "there are six yet"
    places.give_back("two")
    assert (await has(one), await has(two)) == (6, 4)
    for _ in range(3):
        places.give_back("two")
    assert (await has(one), await has(two)) == (8, 5), "all that wanted one"


async def test_places_are_counted_as_they_are_given() -> None:
    """Two that are free in the same turn of the event loop go to two tenants."""
    places = Places(2)
    await taking(places, "one", 2)
    others = [await taking(places, name, 2) for name in ("two", "three")]
    assert [await has(line) for line in others] == [1, 0]
    places.give_back("one")
    places.give_back("one")
    assert [await has(line) for line in others] == [1, 1]
    await end(*others)


async def test_one_that_leaves_takes_no_place_with_it() -> None:
    places = Places(1)
    await places.take("one")
    first, second = await taking(places, "one", 2)
    first.cancel()
    places.give_back("one")  # the first has been cancelled, and does not know it yet
    await settle()
    assert (first.cancelled(), second.done()) == (True, True)
    (third,) = await taking(places, "one", 1)
    places.give_back("one")
    third.cancel()  # it has got the place, and does not know it yet
    await settle()
    assert (third.cancelled(), places.taken, places.waiting) == (True, 0, 0)


async def test_those_who_wait_get_what_others_leave_of_the_shares() -> None:
    places = Places(4)
    await taking(places, "one", 4)
    two, three = await taking(places, "two", 4), await taking(places, "three", 4)
    assert (await has(two), await has(three)) == (2, 1)
    places.give_back("three")
    assert (await has(two), await has(three)) == (2, 2)
    await end(three)  # its second has a place, the others wait
    places.give_back("three")
    assert await has(two) == 2
    places.give_back("one")
    places.give_back("one")
    places.give_back("one")
    assert await has(two) == 3


async def test_random_comings_and_goings_keep_the_rules() -> None:
    draw = random.Random(4)
    for count in (1, 5, 16):
        places, held = Places(count), Counter[str]()
        waiting: list[tuple[str, asyncio.Task[None]]] = []
        for _ in range(600):
            kind, tenant = draw.random(), f"t{draw.randrange(5)}"
            if kind < 0.5:
                waiting += [(tenant, asyncio.ensure_future(places.take(tenant)))]
            elif kind < 0.9 and held.total():
                tenant = draw.choice(sorted(held.elements()))
                held[tenant] -= 1
                places.give_back(tenant)
            elif waiting:
                waiting.pop(draw.randrange(len(waiting)))[1].cancel()
            await settle()
            held.update(name for name, task in waiting if task.done())
            waiting = [(name, task) for name, task in waiting if not task.done()]
            names = {name for name, _ in waiting}
            tenants = len(names | set(+held))
            assert (places.taken, places.waiting) == (held.total(), len(waiting))
            assert all(held.total() >= count and held[name] >= count // tenants for name in names)
            assert held.total() <= sum(count // i for i in range(1, 6))
        await end([task for _, task in waiting])
