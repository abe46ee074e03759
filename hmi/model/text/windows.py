"""Overlapping windows, in which long texts are read instead of being cut.

A text of more than `max_length` tokens becomes up to MAX_WINDOWS windows of at most `max_length` tokens,
[CLS] and [SEP] included. The windows are evenly spread, begin at a word and overlap by about a quarter or
more. What lies beyond MAX_WINDOWS windows is cut. Each window is trained with its text's answer, or with
the tags of its own words. A text's output is the mean over its windows. A word's output is taken from the
window in which the word is farthest from both ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from hmi.model.text.batching import Encoded
from hmi.model.text.reach import reach, stride
from hmi.model.text.tokenizer import Text, Tokenizer


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[Text], max_length: int, *, windows: bool
) -> list[list[Encoded]]:
    """Tokenise texts into windows, or without `windows` into one each, cut to `max_length` tokens."""
    if not windows:
        return [[text] for text in tokenizer.encode(texts, max_length)]
    return [windows_of(text, max_length) for text in tokenizer.encode(texts, reach(max_length))]


def windows_of(text: Encoded, max_length: int) -> list[Encoded]:
    """The windows of one tokenised text, not a pair. Only the last one carries `truncated`."""
    if len(text) <= max_length:
        return [text]
    size, room = len(text) - 2, max_length - 2
    count = 1 + -(-(size - room) // stride(room))
    starts = [round(i * (size - room) / (count - 1)) for i in range(count)]
    return [
        _window(text, _at_word(text.words, 1 + start, room), 1 + start + room, last=i == count - 1)
        for i, start in enumerate(starts)
    ]


def first_pieces(words: Sequence[int | None]) -> dict[int, int]:
    """The position of each word's first piece. Words that were cut off or have no piece are absent."""
    first: dict[int, int] = {}
    for position, word in enumerate(words):
        if word is not None:
            first.setdefault(word, position)
    return first


def words_read(windows: Sequence[Encoded]) -> int:
    """The number of a text's words up to the last one with a token in its windows."""
    return 1 + max((word for window in windows for word in window.words if word is not None), default=-1)


def central_pieces(windows: Sequence[Encoded]) -> dict[int, tuple[int, int]]:
    """For each word, (window, position of its first piece there) in the window where the piece is
    farthest from both ends."""
    found: dict[int, tuple[int, int, int]] = {}
    for i, window in enumerate(windows):
        for word, position in first_pieces(window.words).items():
            inside = min(position, len(window) - 1 - position)
            if word not in found or inside > found[word][0]:
                found[word] = (inside, i, position)
    return {word: (i, position) for word, (_, i, position) in sorted(found.items())}


def _at_word(words: Sequence[int | None], start: int, room: int) -> int:
    """The first start of a word at or after `start`, so that no window begins inside a word.

    Returns `start` itself if a single word fills the window.
    """
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
