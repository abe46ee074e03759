"""The tokens of pieces of text that were tokenised before: most of a new text consists of such pieces.

A chunk is what stands between two spaces. BERT's tokenizers clean a text character by character, split it at
white space, and tokenise each word by itself, so a text's tokens are those of its chunks, one after another.
The exception are special tokens that take the spaces beside them, as MPNet's mask does: they seem to belong
to the chunk before. Texts with one are left to the tokenizer, so that no other text gets their tokens.

Looking them up takes a tenth of the time of tokenising again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Tokenizer as FastTokenizer

LONGEST = 64
"""A text with a longer chunk, in characters, is left to the tokenizer: many Asian texts have no spaces."""
KEPT = 20_000
"""The most chunks that are kept, some 5 MB. Beyond that all are forgotten and learnt anew."""

Chunk = tuple[list[int], list[int], int]
"""The ids of its tokens, each token's word counted from 0, and the number of words."""


class KnownChunks:
    """The chunks that one tokenizer has seen. Thread-safe. Only for tokenizers that have `Beginnings`."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._known: dict[str, Chunk] = {}
        added = fast.get_added_tokens_decoder()
        self._stripping = {i for i, token in added.items() if token.lstrip or token.rstrip}
        """The special tokens that take spaces."""

    def of_text(self, text: str) -> tuple[list[int], list[int]] | None:
        """A text's ids and each token's word, without special tokens; None if the tokenizer must be asked."""
        chunks = self._chunks(text.split(" "))
        if chunks is None:
            return None
        ids: list[int] = []
        words: list[int] = []
        count = 0
        for some, within, number in chunks:
            ids += some
            words += [count] * len(some) if number == 1 else [count + i for i in within]
            count += number
        return ids, words

    def of_words(self, given: Sequence[str]) -> tuple[list[int], list[int]] | None:
        """The same for a text that is split into words already: all tokens of one word have its index."""
        if any(" " in word for word in given):
            return None
        chunks = self._chunks(given)
        if chunks is None:
            return None
        ids: list[int] = []
        words: list[int] = []
        for i, (some, _, _) in enumerate(chunks):
            ids += some
            words += [i] * len(some)
        return ids, words

    def _chunks(self, names: Sequence[str]) -> list[Chunk] | None:
        known = self._known
        found = list(map(known.get, names))
        if None not in found:
            return found  # type: ignore[return-value]
        unknown = list(dict.fromkeys(name for name, chunk in zip(names, found, strict=True) if chunk is None))
        if max(map(len, unknown)) > LONGEST:
            return None
        learnt = self._tokenised(unknown)
        if learnt is None:
            return None
        fresh = dict(zip(unknown, learnt, strict=True))
        if len(known) + len(fresh) > KEPT:
            self._known = known = {}
        known.update(fresh)
        return [fresh[name] if chunk is None else chunk for name, chunk in zip(names, found, strict=True)]

    def _tokenised(self, chunks: Sequence[str]) -> list[Chunk] | None:
        """Tokenise chunks as one text, and divide its tokens by the place that each comes from.

        None if a token may have taken a space.
        """
        whole = self._fast.encode(" ".join(chunks), add_special_tokens=False)
        if not self._stripping.isdisjoint(whole.ids):
            return None
        ends = accumulate(len(chunk) + 1 for chunk in chunks)
        tokens = zip(whole.ids, whole.word_ids, whole.offsets, strict=True)
        out: list[Chunk] = []
        token = next(tokens, None)
        for end in ends:
            ids: list[int] = []
            words: list[int] = []
            while token is not None and token[2][0] < end:
                ids.append(token[0])
                words.append(token[1])
                token = next(tokens, None)
            first = words[0] if words else 0
            within = [word - first for word in words]
            out.append((ids, within, within[-1] + 1 if within else 0))
        return out
