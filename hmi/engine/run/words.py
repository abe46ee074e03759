"""The words of a text, and the n-grams of the PLOT that answered each. Only for requests that want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hmi.engine.texts.item import Item
from hmi.engine.texts.request import Word
from hmi.model.text.reach import reach
from plot_store import ORDER_NAMES

Place = tuple[int, int]
"""The text of a pair (0 or 1), and the index of a word in it."""


def words_of(item: Item) -> list[Word]:
    """The words of a text whose windows have all run, in their order.

    Of a list of words, all are returned, also those that were cut off. Of a text, those that were read.
    """
    orders, text = _orders(item), item.request.text
    if isinstance(text, list):
        return [Word(word, None, None, orders.get((0, i), ())) for i, word in enumerate(text)]
    found = []
    for part, whole in enumerate((text,) if isinstance(text, str) else text):
        for i, (start, end) in sorted(_spans(item, whole).items()):
            if (part, i) in orders:
                found.append(Word(whole[start:end], start, end, orders[part, i], pair=part == 1))
    return found


def _spans(item: Item, text: str) -> Mapping[int, tuple[int, int]]:
    """Return the place of each word: a tagging model's words, or those of the tokenizer."""
    if item.split is not None:
        return dict(enumerate(item.split.spans))
    return item.bundle.root.tokenizer.word_spans(text, reach(item.bundle.version.max_length))


def _orders(item: Item) -> dict[Place, tuple[str, ...]]:
    """Return the n-gram that answered each token of each word, in the window where the word is farthest from
    both ends.
    """
    best: dict[Place, tuple[int, tuple[str, ...]]] = {}
    for index, window in enumerate(item.windows):
        for place, tokens in _places(window.types, window.words).items():
            inside = min(tokens[0], len(window) - 1 - tokens[0])
            if place not in best or inside > best[place][0]:
                best[place] = inside, tuple(_name(item, index, token) for token in tokens)
    return {place: names for place, (_, names) in best.items()}


def _places(types: Sequence[int], words: Sequence[int | None]) -> dict[Place, list[int]]:
    """The positions of each word's tokens."""
    found: dict[Place, list[int]] = {}
    for position, (part, word) in enumerate(zip(types, words, strict=True)):
        if word is not None:
            found.setdefault((part, word), []).append(position)
    return found


def _name(item: Item, window: int, token: int) -> str:
    """Return the name of the n-gram that answered a token. Without a look-up, its state was computed."""
    orders = item.partial.orders.get(window)
    return "computed" if orders is None else ORDER_NAMES[int(orders[token])]
