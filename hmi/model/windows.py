"""Long texts: read in overlapping windows instead of cut.

A text of more than `max_length` tokens becomes at most MOST windows of `max_length` tokens, [CLS] and [SEP]
included. Windows are evenly spread, begin at a word and overlap the next by at least a quarter. Text beyond
MOST windows is cut. Each window is trained with its text's answer, or with its own words' tags. A text's
output is the mean of its windows' outputs; a word's is that of the window in which it is most central.
"""

from __future__ import annotations

from collections.abc import Sequence

from hmi.model.batching import Encoded
from hmi.model.tokenizer import Text, Tokenizer

MOST = 8
"""A text is computed in one batch: more windows would let one tenant's text hold up the others."""
OVERLAP = 4
"""The overlap: one in this many tokens of a window is also in the next."""


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[Text], max_length: int, *, windows: bool
) -> list[list[Encoded]]:
    """The windows of each text: one, cut at `max_length` tokens, unless `windows` is asked for."""
    if not windows:
        return [[text] for text in tokenizer.encode(texts, max_length)]
    return [windows_of(text, max_length) for text in tokenizer.encode(texts, reach(max_length))]


def reach(max_length: int) -> int:
    """How many tokens of a text MOST windows cover."""
    room = max_length - 2
    return room + (MOST - 1) * _stride(room) + 2


def windows_of(text: Encoded, max_length: int) -> list[Encoded]:
    """The windows of one tokenised text (no pair). `truncated` is said of the last."""
    if len(text) <= max_length:
        return [text]
    size, room = len(text) - 2, max_length - 2
    count = 1 + -(-(size - room) // _stride(room))
    starts = [round(i * (size - room) / (count - 1)) for i in range(count)]
    return [
        _window(text, _at_word(text.words, 1 + start, room), 1 + start + room, last=i == count - 1)
        for i, start in enumerate(starts)
    ]


def first_pieces(words: Sequence[int | None]) -> dict[int, int]:
    """Word -> position of its first piece; without words that truncation cut or that have no piece at all."""
    first: dict[int, int] = {}
    for position, word in enumerate(words):
        if word is not None:
            first.setdefault(word, position)
    return first


def central_pieces(windows: Sequence[Encoded]) -> dict[int, tuple[int, int]]:
    """Word -> (window, position of its first piece there), of the window where that is farthest from either
    end."""
    found: dict[int, tuple[int, int, int]] = {}
    for i, window in enumerate(windows):
        for word, position in first_pieces(window.words).items():
            inside = min(position, len(window) - 1 - position)
            if word not in found or inside > found[word][0]:
                found[word] = (inside, i, position)
    return {word: (i, position) for word, (_, i, position) in sorted(found.items())}


def _stride(room: int) -> int:
    return max(1, room - room // OVERLAP)


def _at_word(words: Sequence[int | None], start: int, room: int) -> int:
    """The beginning of a word at or after `start`: a first piece that is none would be taken for one."""
    for at in range(start, start + room):
        if words[at] is None or words[at] != words[at - 1]:
            return at
    return start


def _window(text: Encoded, start: int, end: int, *, last: bool) -> Encoded:
    keep = [0, *range(start, end), len(text) - 1]
    ids, types, words = text.ids, text.types, text.words
    return Encoded(
        [ids[i] for i in keep], [types[i] for i in keep], [words[i] for i in keep], last and text.truncated
    )
