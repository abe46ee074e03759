"""The text of an answer as its tokens come: whole characters, and nothing after a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

BROKEN = "�"
"""What a tokenizer writes for bytes that are no whole character (yet)."""
HELD = 8
"""The most tokens whose text is held for bytes that follow. A character has at most four bytes."""


class AnswerText:
    """The text of one answer. What `push` returns can be sent at once: it does not change any more."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        """decode: gives the text of ids. stops: the answer ends before the one that is complete first."""
        self._decode, self._stops = decode, [stop for stop in stops if stop]
        self._ids: list[int] = []
        self._begin = self._end = 0
        """The last piece of text came from the ids from `_begin` to `_end`. They are decoded together with
        new ids, since a token's text may depend on those before it."""
        self._held = ""
        """Text that was not returned yet, since it may begin a stop string."""
        self.stopped: str | None = None
        """The stop string that ended the answer."""

    def push(self, id: int) -> str:
        """Take one more token. Returns the text that has become certain; "" after a stop string."""
        if self.stopped is not None:
            return ""
        self._ids.append(id)
        before = self._decode(self._ids[self._begin : self._end])
        now = self._decode(self._ids[self._begin :])
        waits = now.endswith(BROKEN) or len(now) <= len(before)  # a character's other bytes may follow
        if waits and len(self._ids) - self._end < HELD:
            return ""
        self._held += now[len(before) :]
        self._begin, self._end = self._end, len(self._ids)
        return self._certain()

    def end(self) -> str:
        """Return the rest of the text; no token may follow. Leaves out bytes that are no whole character."""
        if self.stopped is not None:
            return ""
        before = self._decode(self._ids[self._begin : self._end])
        rest = self._decode(self._ids[self._begin :])[len(before) :]
        self._held += rest.rstrip(BROKEN)
        self._end = self._begin = len(self._ids)
        found = self._certain()
        held, self._held = self._held, ""
        return found if self.stopped is not None else found + held

    def _certain(self) -> str:
        """Take from `_held` what cannot belong to a stop string, and return it. Notes a whole stop string."""
        text = self._held
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped = min(found, key=lambda each: (each[0] + len(each[1]), each[0]))
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest beginning of a stop string with which the text ends. 0: there is none."""
    return next(
        (size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0
    )
