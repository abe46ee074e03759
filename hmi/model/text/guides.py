"""Guides: which tokens may come next in an answer that must keep a form. The library `llguidance` knows."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hmi.errors import CutShort, InvalidInput
from hmi.model.text.form import Form

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from hmi.model.text.generative import GenerativeTokenizer

MOST_SAID = 300
"""The most characters of the library's own errors."""
SLOWEST_S = 0.05
"""The most CPU seconds of a mask. The library's limits bound most of them to a tenth of it."""
KEPT = 64
"""The compiled forms that a root keeps."""
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
"""What a form may cost: some 200 ms to compile, 10 ms for a mask, and 10 MB."""
JSON = {
    "lenient": False,
    "coerce_one_of": False,
    # A small model that may write any number of spaces would write them for ever.
    "whitespace_flexible": True,
    "whitespace_pattern": " ?",
}
USUAL_JSON = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON with the spaces that most models write."""
MOST_AHEAD = 64
"""The most bytes of a form that are guessed ahead."""
_SPECIAL = re.compile(r"<\[|<\||%llguidance|\b(?:temperature|max_tokens)\s*=")
"""What a grammar may not have: it would ask for tokens without text, or for what a request has fields."""


class Guide(Protocol):
    """Says which tokens may come next in one answer. Used by one thread at a time."""

    @property
    def error(self) -> CutShort | None:
        """Why no token can be chosen any more."""
        ...

    @property
    def ended(self) -> bool:
        """True if nothing may follow."""
        ...

    def look(self) -> None:
        """Find out which tokens may come next. It takes some µs to ms, and lets other threads run."""
        ...

    def allows(self, id: int) -> bool:
        """Return whether a token may come next."""
        ...

    def kept(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [vocab or more] -> a copy, with -inf for each token that may not come next."""
        ...

    def take(self, id: int) -> None:
        """The next token was chosen: one that `allows` allows."""
        ...

    def ahead(self) -> Sequence[int]:
        """Tokens that most likely come next, since the form goes on by them in one way. It takes some µs."""
        ...

    def keeps(self, text: str) -> bool:
        """Return whether a text, as it was sent, is whole and as it must be."""
        ...


class Spelling:
    """A `Guide` that allows some tokens one after another, and nothing else."""

    error: None = None

    def __init__(self, ids: Sequence[int]) -> None:
        self._left = list(ids)

    @property
    def ended(self) -> bool:
        return not self._left

    def look(self) -> None:
        pass

    def allows(self, id: int) -> bool:
        return id == self._left[0]

    def kept(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        found = np.full_like(scores, -np.inf)
        found[self._left[0]] = scores[self._left[0]]
        return found

    def take(self, id: int) -> None:
        del self._left[0]

    def ahead(self) -> Sequence[int]:
        return self._left

    def keeps(self, text: str) -> bool:
        return self.ended


class FormGuide:
    """The `Guide` of one answer through its form."""

    def __init__(
        self,
        matcher: LLMatcher,
        fresh: LLMatcher,
        likely: LLMatcher | None,
        tokenizer: LLTokenizer,
        ids_of: Callable[[str], Sequence[int]],
    ) -> None:
        """matcher: at the beginning of the answer. fresh: stays there. likely: at the beginning of answers as
        most models write them. ids_of: tokenises."""
        self._matcher, self._fresh, self._tokenizer = matcher, fresh, tokenizer
        self._likely, self._ids_of = likely, ids_of
        self._mask: NDArray[np.uint8] | None = None
        self.error: CutShort | None = None

    @property
    def ended(self) -> bool:
        return self.error is None and bool(self._matcher.is_stopped())

    def look(self) -> None:
        if self._mask is None and self.error is None:
            begun = time.thread_time()
            self._mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            if self._matcher.is_error():
                self.error = _stuck(self._matcher)
            elif time.thread_time() - begun > SLOWEST_S:  # the texts beside it would wait for each
                self.error = CutShort("form costs too much here: make it simpler", field="form")

    def allows(self, id: int) -> bool:
        mask = self._found()
        return 0 < id <= 8 * len(mask) and bool(mask[(id - 1) >> 3] >> ((id - 1) & 7) & 1)

    def kept(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        found = np.full_like(scores, -np.inf)
        may = np.unpackbits(self._found(), count=self._tokenizer.vocab_size, bitorder="little").view(bool)
        end = min(len(scores), 1 + len(may))
        np.copyto(found[1:end], scores[1:end], where=may[: end - 1])
        return found

    def take(self, id: int) -> None:
        self._mask = None
        if not self._matcher.consume_token(id - 1):
            self.error = _stuck(self._matcher)
        if self._likely is not None and not self._likely.consume_token(id - 1):
            self._likely = None  # this text goes another way

    def ahead(self) -> Sequence[int]:
        forced = b"" if self._likely is None else self._likely.compute_ff_bytes()
        text = forced[:MOST_AHEAD].decode(errors="ignore")
        return self._ids_of(text) if text else []

    def keeps(self, text: str) -> bool:
        matcher = self._fresh.deep_copy()
        ids = self._tokenizer.greedy_tokenize(text)  # to which names of special tokens are characters
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def _found(self) -> NDArray[np.uint8]:
        self.look()
        if self.error is not None:
            raise ValueError(self.error.message)
        assert self._mask is not None
        return self._mask


class Guides:
    """Compiles forms for one tokenizer, and keeps the latest ones. Thread-safe."""

    def __init__(self, tokenizer: GenerativeTokenizer) -> None:
        self._source = tokenizer
        self._kept: OrderedDict[str, tuple[LLMatcher, LLMatcher]] = OrderedDict()
        """Each form, and what of it most models write."""
        self._lock = threading.Lock()

    def guide(self, form: Form) -> FormGuide:
        """Compile a form, unless that was done lately, and begin an answer.

        Takes up to some 200 ms, in which other threads run. Raises InvalidInput.
        """
        with self._lock:
            found = self._kept.get(form.key)
            if found is None:
                found = self._kept[form.key] = self._compiled(form)
            self._kept.move_to_end(form.key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            whole, likely = found
            copies = whole.deep_copy(), whole, likely.deep_copy()
            return FormGuide(*copies, self._tokenizer, self._ids_of)

    def _ids_of(self, text: str) -> Sequence[int]:
        (encoded,) = self._source.encode([text], len(text.encode()) + 2)
        return encoded.ids[1:]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Takes a fifth of a second, and 25 MB, with 49,152 tokens."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise InvalidInput(
                "form needs the package llguidance: install hmi-server[structured]", field="form"
            ) from error
        ends = [id - 1 for id in self._source.ends]
        return LLTokenizer(self._source.fast.to_str(), eos_token=ends or None)

    def _compiled(self, form: Form) -> tuple[LLMatcher, LLMatcher]:
        tokenizer = self._tokenizer  # which fails if the package is missing
        from llguidance import LLMatcher, LLParserLimits

        field = next(f"{form.place}.{name}" for name in _FIELDS if getattr(form, name) not in (None, False))
        try:
            grammar, usual = _grammar(LLMatcher, form, JSON), _grammar(LLMatcher, form, USUAL_JSON)
        except ValueError as error:
            raise InvalidInput(f"{field} cannot be read: {error}", field=field) from error
        limits = LLParserLimits(**LIMITS)
        made = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        begun = made if made.is_error() else made.deep_copy()
        if not begun.is_error():
            begun.compute_bitmask()
        if begun.is_error():
            raise InvalidInput(f"{field} cannot be kept: {_reason(begun)}", field=field)
        return made, made if usual == grammar else LLMatcher(tokenizer, usual, log_level=0, limits=limits)


_FIELDS = ("json_schema", "json", "choices", "regex", "grammar")


def _grammar(library: Any, form: Form, how: Mapping[str, Any]) -> str:
    """The form as the library takes it. how: it writes JSON. Raises ValueError."""
    if form.json or form.json_schema is not None:
        schema = {"type": "object"} if form.json_schema is None else dict(form.json_schema)
        return str(library.grammar_from_json_schema(json.dumps(schema), overrides=dict(how)))
    if form.regex is not None:
        return str(library.grammar_from_regex(form.regex))
    if form.choices is not None:
        return str(library.grammar_from_lark("start: " + " | ".join(map(_quoted, form.choices))))
    assert form.grammar is not None
    if found := _SPECIAL.search(form.grammar):
        raise ValueError(f"{found[0]!r} is not supported")
    return str(library.grammar_from_lark(form.grammar))


def _quoted(text: str) -> str:
    """A text as a string of Lark's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _stuck(matcher: LLMatcher) -> CutShort:
    return CutShort(f"form cannot be kept any further: {_reason(matcher)}", field="form")


def _reason(matcher: LLMatcher) -> str:
    said = " ".join(str(matcher.get_error()).replace("<non-verbose/>", "").split())
    return "no text keeps it" if said.startswith("NoExtension") else said[:MOST_SAID]
