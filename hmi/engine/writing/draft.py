"""One answer while it is written: its sequence of tokens, and its text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from hmi.core import ModelId
from hmi.engine.writing.pieces import Event, Pieces
from hmi.engine.writing.request import Finish, TokenScore, WrittenPiece, WrittenText
from hmi.errors import CutShort, Damaged
from hmi.execution.decoding.sampling import Chosen
from hmi.execution.decoding.writing import Answer
from hmi.model.text.answer_text import AnswerText
from hmi.model.text.generative import GenerativeTokenizer
from hmi.stores.plot.miss_recorder import MissRecorder
from plot_store import Reader


@dataclass(eq=False)
class Draft(Pieces):
    """An answer while it is written. A compute thread writes it, and the event loop reads its events."""

    reader: Reader
    tokenizer: GenerativeTokenizer
    answer: Answer
    misses: MissRecorder | None = None
    again: bool = False
    """True if its call has counted its prompt already, with another choice."""
    arrived: float = field(default_factory=time.monotonic)
    begun: float | None = None
    """The `time.monotonic()` at which its first step began."""
    first: float | None = None
    """The `time.monotonic()` at which its first token was there."""
    last: float = 0.0
    """The `time.monotonic()` of its newest token."""
    error: Exception | None = None
    """Why its scores are no numbers, if the reason is known: its look-ups failed."""
    scores: list[TokenScore] = field(default_factory=list)
    count: int = 0
    """The number of its tokens. Its sequence has more after a stop string, if a step wrote several."""

    def __post_init__(self) -> None:
        self._text = AnswerText(self.tokenizer.decode, self.request.stops)
        self._whole: list[str] = []

    @property
    def model(self) -> ModelId:
        return self.request.model

    @property
    def tokens(self) -> int:
        """See `WrittenPieces`."""
        if self.begun is None or self.at_fault:
            return 0
        return self.count + (0 if self.again else len(self.answer.prompt))

    def heard(self, chosen: Chosen | None) -> list[Event]:
        """Take the next token, None if there is none, since no score is a number or its guide fails. Returns
        what to send.

        Called on the compute thread.
        """
        if chosen is None:
            why = self.error or self.answer.error or (self.answer.guide and self.answer.guide.error)
            return [why or Damaged(f"model {self.model} gives no scores: roll back or train it again")]
        answer, now = self.answer, time.monotonic()
        self.first = self.first or now
        self.last = now
        self.count += 1
        whole = self.count == len(answer.written)  # else its end is that of a later token
        text = "" if chosen.id in answer.ends else self._text.push(chosen.id)
        finish: Finish | None = answer.ended if whole and answer.ended != "failed" else None
        if self._text.stopped is not None:
            finish = "stop"
        elif finish is not None:
            text += self._text.end()
            finish = finish if self._text.stopped is None else "stop"
        self._whole.append(text)
        scores = []
        if chosen.logprob is not None:
            scores = [self._score(chosen.id, chosen.logprob, chosen.best)]
            self.scores += scores
        events: list[Event] = [WrittenPiece(text, scores)] if text or scores else []
        return events if finish is None else [*events, self._cut_short(finish) or self._end(finish)]

    def _cut_short(self, finish: Finish) -> CutShort | None:
        """The error of a text that has ended and does not keep its form; None: it does, or has none."""
        guide = self.answer.guide
        if guide is None or guide.keeps("".join(self._whole)):
            return None
        assert self.request.form is not None
        count, most = self.count, self.answer.most
        field = {
            "length": self.request.name("max_tokens"),
            "stop": self.request.name("stop"),
            "end": self.request.form.field,
        }[finish]
        why = {
            "length": f"it has the longest answer's {most} tokens: raise {field}, or bound the form",
            "stop": "a stop string came: leave it out",
            "end": "the root's tokenizer cannot write it: use another form",
        }[finish]
        return CutShort(
            f"the text ended after {count} tokens and does not keep its form, since {why}", field=field
        )

    def _score(self, id: int, logprob: float, best: object) -> TokenScore:
        assert isinstance(best, list | tuple)
        best_of = [(self._token(i), x) for i, x in best]
        return TokenScore(self._token(id), logprob, best_of, id - 1, id in self.tokenizer.specials)

    def _token(self, id: int) -> str:
        return str(self.tokenizer.fast.decode([id - 1], skip_special_tokens=False))

    def _end(self, finish: Finish) -> WrittenText:
        answer = self.answer
        begun, first = self.begun or self.arrived, self.first or self.arrived
        timing = {
            "queue_ms": 1e3 * (begun - self.arrived),
            "first_token_ms": 1e3 * (first - self.arrived),
            "rest_ms": 1e3 * (self.last - first),
        }
        return WrittenText(
            self.model,
            self.version.version,
            "".join(self._whole),
            finish,
            len(answer.prompt),
            answer.cached or 0,
            self.count,
            self.scores,
            {name: round(ms, 3) for name, ms in timing.items()},
            self._looked_up(),
        )

    def _looked_up(self) -> dict[str, int]:
        """Look all tokens up once more, to count what answered them and to record the misses."""
        end = len(self.answer.prompt) + self.count - 1  # the last one was chosen, and is not read
        tokens = np.array(self.answer.ids[1:end], np.int32)
        offsets = np.array([0, len(tokens)], np.int64)
        _, hits = self.reader.lookup(tokens, offsets)
        if self.misses is not None:
            self.misses.record(self.reader.version, tokens, offsets, hits)
        return hits.counts()
