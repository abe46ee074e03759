"""Guides: which tokens may come next in an answer that must keep a form. The library `llguidance` knows."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
MOST_AHEAD = 64
"""The most bytes of a form that are guessed ahead, or little more."""
DEAREST_AHEAD_S = 0.001
"""The CPU seconds of a look ahead after which a text has no further ones: it gains at most some steps."""
SPACED = (b",", b":")
"""Most models write a space after these."""
_REFUSED = re.compile(r"<\[|%llguidance|\b(?:temperature|max_tokens)\s*=")
"""What a grammar may not have: it would ask for tokens by their ids, or for what a request has fields."""


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
        self, compiled: LLMatcher, tokenizer: LLTokenizer, ids_of: Callable[[str], Sequence[int]], field: str
    ) -> None:
        """compiled: the form, at the beginning of a text; it stays there. ids_of: tokenises as the root does.
        field: see `Form.field`."""
        self._matcher, self._fresh = compiled.deep_copy(), compiled
        self._tokenizer, self._ids_of, self._field = tokenizer, ids_of, field
        self._last = b""
        """The last byte that was written."""
        self._dear = False
        """True if looking ahead took too long."""
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
                self.error = self._stuck()
            elif time.thread_time() - begun > SLOWEST_S:  # the texts beside it would wait for each
                message = f"{self._field} costs too much here: make it simpler"
                self.error = CutShort(message, field=self._field)

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
            self.error = self._stuck()
        self._last = self._tokenizer.decode_bytes([id - 1])[-1:] or self._last

    def ahead(self) -> Sequence[int]:
        """See `Guide.ahead`. It asks copies: asking changes what a matcher counts as its cost."""
        if self._dear or self.error is not None:
            return []
        begun, text, last = time.thread_time(), b"", self._last
        matcher = self._matcher.deep_copy()
        while len(text) < MOST_AHEAD:
            forced = matcher.compute_ff_bytes()[:MOST_AHEAD] or self._spaced(matcher, last)
            if not forced or not matcher.consume_tokens(self._tokenizer.tokenize_bytes(forced)):
                break
            text, last = text + forced, forced[-1:]
        found = self._ids_of(_characters(text))
        self._dear = time.thread_time() - begun > DEAREST_AHEAD_S
        return found

    def _spaced(self, matcher: LLMatcher, last: bytes) -> bytes:
        """What is forced but for one space that may come or not, as between the tokens of JSON: with the
        space after a comma or a colon, else without."""
        space, after = self._tokenizer.tokenize_bytes(b" "), matcher.deep_copy()
        if last.isdigit() or after.try_consume_tokens(space) < len(space) or after.validate_tokens(space):
            return b""
        forced: bytes = after.compute_ff_bytes()[:MOST_AHEAD]
        return b" " + forced if last in SPACED else forced

    def keeps(self, text: str) -> bool:
        matcher = self._fresh.deep_copy()
        ids = self._tokenizer.greedy_tokenize(text)  # to which names of special tokens are characters
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def _stuck(self) -> CutShort:
        message = f"{self._field} cannot be kept any further: {_reason(self._matcher)}"
        return CutShort(message, field=self._field)

    def _found(self) -> NDArray[np.uint8]:
        self.look()
        if self.error is not None:
            raise ValueError(self.error.message)
        assert self._mask is not None
        return self._mask


class _Words:
    """A tokenizer as the library takes it from Python, with the source's own ids.

    The library's own way to read a tokenizer spells a text that has a special token's name with that token.
    """

    bos_token_id = None

    def __init__(self, source: GenerativeTokenizer, known: LLTokenizer) -> None:
        """known: the same tokenizer in the library's way, which knows each token's bytes."""
        self._plain = source.plain
        self.eos_token_id = (source.ends or (source.begin,))[0] - 1
        special = {id - 1 for id in source.specials.union(source.ends)}
        self.special_token_ids = sorted(special)
        self.tokens = [
            b" %d" % id if id in special else known.decode_bytes([id]) for id in range(known.vocab_size)
        ]
        """Those of special tokens are names that no grammar can ask for, since they have a space."""

    def __call__(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)


class Guides:
    """Compiles forms for one tokenizer, and keeps the latest ones. Used by one thread at a time."""

    def __init__(self, tokenizer: GenerativeTokenizer) -> None:
        self._source = tokenizer
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def guide(self, form: Form) -> FormGuide:
        """Compile a form, unless that was done lately, and begin an answer.

        Takes up to some 200 ms, in which other threads run. Raises InvalidInput.
        """
        found = self._kept.get(form.key)
        if found is None:
            found = self._kept[form.key] = self._compiled(form)
        self._kept.move_to_end(form.key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return FormGuide(found, self._tokenizer, self._ids_of, form.field)

    def _ids_of(self, text: str) -> Sequence[int]:
        (encoded,) = self._source.encode([text], len(text.encode()) + 2)
        return encoded.ids[1:]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Takes half a second, and 60 MB, with 49,152 tokens."""
        from llguidance import LLTokenizer, TokenizerWrapper

        known = LLTokenizer(self._source.fast.to_str())
        words = TokenizerWrapper(_Words(self._source, known))
        ends = [id - 1 for id in self._source.ends]
        return LLTokenizer(words, n_vocab=known.vocab_size, eos_token=ends or words.eos_token_id)

    def _compiled(self, form: Form) -> LLMatcher:
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise InvalidInput(
                f"{form.place} needs the package llguidance: install hmi-server[structured]", field=form.place
            ) from error

        field = form.field
        try:
            grammar = _grammar(LLMatcher, form)
        except ValueError as error:
            raise InvalidInput(f"{field} cannot be read: {error}", field=field) from error
        made = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        begun = made if made.is_error() else made.deep_copy()
        if not begun.is_error():
            begun.compute_bitmask()
        if begun.is_error():
            raise InvalidInput(f"{field} cannot be kept: {_reason(begun)}", field=field)
        return made


def _grammar(library: Any, form: Form) -> str:
    """The form as the library takes it. Raises ValueError."""
    if form.json or form.json_schema is not None:
        schema = {"type": "object"} if form.json_schema is None else dict(form.json_schema)
        return str(library.grammar_from_json_schema(json.dumps(schema), overrides=JSON))
    if form.regex is not None:
        return str(library.grammar_from_regex(form.regex))
    if form.choices is not None:
        return str(library.grammar_from_lark("start: " + " | ".join(map(_quoted, form.choices))))
    assert form.grammar is not None
    if found := _REFUSED.search(form.grammar):
        raise ValueError(f"{found[0]!r} is not supported")
    return str(library.grammar_from_lark(form.grammar))


def _quoted(text: str) -> str:
    """A text as a string of Lark's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _characters(text: bytes) -> str:
    """The text before the first bytes that are no whole character."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


def _reason(matcher: LLMatcher) -> str:
    said = " ".join(str(matcher.get_error()).replace("<non-verbose/>", "").split())
    said = said.split("; following special tokens")[0]
    return "no text keeps it" if said.startswith("NoExtension") else said[:MOST_SAID]
