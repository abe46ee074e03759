"""Guesses of a text's next tokens against an obvious search, and how a text gives up those that fail."""

from __future__ import annotations

import random

import pytest

from hmi.execution.decoding.guesses import BESIDE, FORM, LEAST, LONGEST, MOST, USUAL, Guesses, worth


def obvious(ids: list[int], most: int) -> list[int]:
    """What followed the most of the last ids where they stood before, at the latest such place."""
    best, at = LEAST - 1, -1
    for place in range(1, len(ids)):
        length = 0
        while length < min(place, LONGEST) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= max(best, LEAST):
            best, at = length, place
    found = list(ids)
    for step in range(most if at > 0 else 0):
        found.append(found[at + step])
    return found[len(ids) :]


@pytest.mark.parametrize("words", [2, 5, 40])
def test_what_followed_the_same_ids_before_is_guessed(words: int) -> None:
    draw, seen = random.Random(words), 0
    for _ in range(40):
        guesses, ids = Guesses(200), [draw.randrange(words) for _ in range(draw.randrange(1, 120))]
        while len(ids) < 150:
            most = draw.randrange(1, 20)
            expected = obvious(ids, most)
            assert guesses.of(ids, [], most, 1e-9) == expected
            seen += len(expected) > 0
            ids += [*expected[: draw.randrange(4)], draw.randrange(words)]
    assert seen > 30


def test_a_form_comes_first_and_the_text_goes_on_from_it() -> None:
    ids = [5, 6, 7, 8, 9, 1, 2]
    assert Guesses(20).of(ids, [5, 6], 5, 1e-9) == [5, 6, 7, 8, 9]
    assert Guesses(20).of(ids, [5, 6], 1, 1e-9) == [5]
    assert Guesses(20).of(ids, [], 5, 1e-9) == []


def test_a_token_is_guessed_only_if_it_is_likely_enough() -> None:
    ids = [*range(2, 40), *range(2, 5)]
    for least in (0.3, 0.5, 0.9):
        share, expected = 1.0, 0
        for step in range(MOST):
            share *= USUAL[min(3 + step, LONGEST)]
            expected += share >= least
        assert len(Guesses(90).of(ids, [], MOST, least)) == expected
        share = USUAL[FORM] ** len(Guesses(90).of(ids, [7] * MOST, MOST, least))
        assert share >= least


def test_what_does_not_come_true_is_given_up_and_tried_again_later() -> None:
    """A text whose ids repeat themselves, but for what follows."""
    least, guesses, ids, tries = worth(4), Guesses(5000), [3, 4, 5], list[int]()
    for step in range(400):
        ids += [3, 4, 5, 10 + step]
        for end in range(len(ids) - 3, len(ids) + 1):
            found = guesses.of(ids[:end], [], MOST, least)
            wrong = found[:1] != ids[end : end + 1] or end == len(ids)
            if end == len(ids) - 1:
                tries += [step] * bool(found)
                guesses.told(0)
            elif found:
                guesses.told(0 if wrong else 1)
    assert tries
    assert 10 < len([step for step in tries if step > 100]) < 100


def test_a_text_that_copies_soon_guesses_as_many_as_it_may_and_one_beside_many_others_fewer() -> None:
    ids, guesses = [*range(2, 300)], Guesses(700)
    ids += ids[:3]
    counts = []
    while len(ids) < 500:
        found = guesses.of(ids, [], MOST, worth(1))
        counts.append(len(found))
        ids += [*found, ids[len(ids) + len(found) - 298]]
        guesses.told(len(found))
    assert counts[0] < MOST
    assert counts[-1] == MOST
    alone, beside = (len(Guesses(700).of(ids, [], MOST, worth(texts))) for texts in (1, 16))
    assert beside < alone
    assert worth(1) < worth(4) < worth(16) < 1
    assert worth(1) == 1 / (1 + BESIDE)
