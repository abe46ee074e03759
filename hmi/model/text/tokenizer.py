"""The root's tokenizer: texts, pairs and pre-split words to ids, with truncation made visible."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from tokenizers import Encoding, decoders
from tokenizers import Tokenizer as FastTokenizer

from hmi.errors import UnsupportedModel
from hmi.model.text.batching import Encoded
from hmi.model.text.beginnings import CHARACTERS_A_TOKEN, GROWTH, beginning, beginnings_of, is_cut
from hmi.model.text.beginnings import Text as Text

LONGEST = 64
"""A text with a longer chunk, in characters, is left to the tokenizer: many Asian texts have no spaces."""
KEPT = 20_000
"""The most chunks that are kept, some 5 MB. Beyond that all are forgotten and learnt anew."""

_Chunk = tuple[list[int], list[int], int]
"""The ids of its tokens, each token's word counted from 0, and the number of words."""


class KnownChunks:
    """The chunks that one tokenizer has seen. Thread-safe. Only for tokenizers that have `Beginnings`.

    A chunk is what stands between two spaces. BERT's tokenizers clean a text character by character, split it
    at white space, and tokenise each word by itself, so a text's tokens are those of its chunks, one after
    another. The exception are special tokens that take the spaces beside them, as MPNet's mask does: they
    seem to belong to the chunk before. Texts with one are left to the tokenizer, so that no other text gets
    their tokens. Most of a new text consists of known chunks, and looking them up takes a tenth of the time.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._known: dict[str, _Chunk] = {}
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

    def _chunks(self, names: Sequence[str]) -> list[_Chunk] | None:
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

    def _tokenised(self, chunks: Sequence[str]) -> list[_Chunk] | None:
        """Tokenise chunks as one text, and divide its tokens by the place that each comes from.

        None if a token may have taken a space.
        """
        whole = self._fast.encode(" ".join(chunks), add_special_tokens=False)
        if not self._stripping.isdisjoint(whole.ids):
            return None
        ends = accumulate(len(chunk) + 1 for chunk in chunks)
        tokens = zip(whole.ids, whole.word_ids, whole.offsets, strict=True)
        out: list[_Chunk] = []
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


TEXTS_AT_ONCE = 256
"""The most texts that are passed to the tokenizer together."""
FEW_TEXTS = 16
"""More texts than this go to the tokenizer itself, which may use all cores."""
CHARACTERS_AT_ONCE = 4 << 20
"""The most characters that are passed to the tokenizer together, unless a single text has more."""
SPECIALS = {"[CLS]": ("[MASK]", "[PAD]"), "<s>": ("<mask>", "<pad>")}
"""The supported tokens at the start of a text, each with the mask and padding tokens that go with it."""


MARKS = {"ByteLevel": "Ġ", "Metaspace": "▁"}
"""The sign that a pre-tokenizer puts for the space before a word. BERT's puts none."""

_BYTES = decoders.ByteLevel()


class Tokenizer:
    """The tokenizer of a `tokenizer.json`. Thread-safe. Raises UnsupportedModel if the file does not fit.

    In HMI padding has id 0, which PLOTs use for "no neighbour". If the source's padding has another id,
    `pad_id`, the ids 0 and `pad_id` are swapped.
    """

    window: Final = "centred"
    first_counted: Final = 0

    def __init__(self, path: Path) -> None:
        try:
            self._fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise UnsupportedModel(
                f"{path.name} is not a readable tokenizer: {error}", field="source"
            ) from error
        self._fast.no_padding()
        self._fast.no_truncation()
        self._beginnings = beginnings_of(self._fast)
        told = json.loads(self._fast.to_str())
        before = json.dumps(told["pre_tokenizer"])
        self._mark = next((mark for name, mark in MARKS.items() if f'"{name}"' in before), "")
        empty = self._fast.encode("").tokens
        if len(empty) != 2 or empty[0] not in SPECIALS:
            known = " or ".join(SPECIALS)
            raise UnsupportedModel(
                f"{path.name} begins and ends a text with {empty}: it must begin with {known} and end "
                "with one token",
                field="source",
            )
        mask, pad = SPECIALS[empty[0]]
        self.pad_id = self._found(pad)
        self.cls_id, self.sep_id, self.mask_id = (self._id(token) for token in (empty[0], empty[1], mask))
        unknown = self._fast.token_to_id(told["model"].get("unk_token") or "")
        self.unknown_id = None if unknown is None else self._ours(unknown)
        """The token that stands for all characters that the tokenizer does not know; None: it knows all."""
        apart = self._beginnings is not None and self._beginnings.spaces
        self._chunks = KnownChunks(self._fast) if apart else None
        between = self._fast.encode("", "").ids[1:-1]
        self._between = [self._ours(i) for i in between]
        """The separator between the two texts of a pair."""

    def encode(self, texts: Sequence[Text], max_length: int) -> list[Encoded]:
        """Tokenise texts, pairs or lists of words, and cut each to `max_length` tokens, [SEP] included.

        With BERT's tokenizers, text far beyond the cut is not read, so the cost depends on the tokens kept.
        """
        if len(texts) > FEW_TEXTS:
            return self._encode(texts, max_length)
        known = [self._known(text, max_length) for text in texts]
        others = [text for text, found in zip(texts, known, strict=True) if found is None]
        rest = iter(self._encode(others, max_length))
        return [next(rest) if found is None else found for found in known]

    def _encode(self, texts: Sequence[Text], max_length: int) -> list[Encoded]:
        """`encode` by the tokenizer itself."""
        out: list[Encoded] = []
        for some in _at_once([self._beginning(t, max_length) for t in texts]):
            out += self._encode_some(some, texts[len(out) : len(out) + len(some)], max_length)
        return out

    def _known(self, text: Text, max_length: int) -> Encoded | None:
        """`encode` by the chunks that are known; None for a text that is too long or otherwise unusual."""
        parts = (text,) if isinstance(text, str) else text
        if self._chunks is None or sum(map(len, parts)) > CHARACTERS_A_TOKEN * max_length:
            return None
        first = self._chunks.of_words(parts) if isinstance(parts, list) else self._chunks.of_text(parts[0])
        if first is None:
            return None
        ids, words = [self.cls_id, *self._all_ours(first[0])], [None, *first[1]]
        types = [0] * (len(ids) + 1)
        if isinstance(text, tuple):
            second = self._chunks.of_text(text[1])
            if second is None or not (first[0] and second[0]):
                return None
            ids += [*self._between, *self._all_ours(second[0])]
            words += [*[None] * len(self._between), *second[1]]
            types = [*types[:-1], *[0] * len(self._between), *[1] * (len(second[0]) + 1)]
            if len(ids) >= max_length:
                return None
        ids.append(self.sep_id)
        words.append(None)
        if len(ids) <= max_length:
            return Encoded(ids, types, words)
        del ids[max_length - 1 : -1], types[max_length:], words[max_length - 1 : -1]
        return Encoded(ids, types, words, True)

    def _all_ours(self, ids: list[int]) -> list[int]:
        return [self._ours(i) for i in ids] if self.pad_id else ids

    def _beginning(self, text: Text, max_length: int) -> Text:
        """A prefix of the text that is likely to give `max_length` tokens."""
        known = self._beginnings
        return text if known is None else beginning(text, CHARACTERS_A_TOKEN * (max_length + known.margin))

    def _encode_some(self, short: Sequence[Text], whole: Sequence[Text], max_length: int) -> list[Encoded]:
        singles = [i for i, t in enumerate(short) if not isinstance(t, list)]
        words = [i for i, t in enumerate(short) if isinstance(t, list)]
        out: dict[int, Encoded] = {}
        for at, pretokenised in ((singles, False), (words, True)):
            given = [self._after_spaces(short[i]) for i in at]
            batch = self._fast.encode_batch(given, is_pretokenized=pretokenised) if at else []
            for i, e in zip(at, batch, strict=True):
                if not self._enough(e, short[i], whole[i], max_length):
                    e = self._longer(whole[i], max_length)
                out[i] = self._cut(e, max_length)
        return [out[i] for i in range(len(short))]

    def _after_spaces(self, text: Text) -> Text:
        """Words as they stand in a text: all but the first after a space, where that changes their tokens.

        A mark such as a comma gets a space before it, too, unlike in most texts.
        """
        if self._mark != MARKS["ByteLevel"] or not isinstance(text, list):
            return text
        return [word if not i or word[:1].isspace() else f" {word}" for i, word in enumerate(text)]

    def _longer(self, text: Text, max_length: int) -> Encoding:
        """Tokenise longer and longer prefixes of a text until one gives enough tokens."""
        known = self._beginnings
        assert known is not None
        if isinstance(text, str):
            text = known.squeezed(text)
        else:
            squeezed = map(known.squeezed, text)
            text = list(squeezed) if isinstance(text, list) else (next(squeezed), next(squeezed))
        characters = CHARACTERS_A_TOKEN * (max_length + known.margin)
        while True:
            short = beginning(text, characters)
            e = self._fast.encode_batch([short], is_pretokenized=isinstance(text, list))[0]
            if self._enough(e, short, text, max_length):
                return e
            characters *= GROWTH

    def _enough(self, e: Encoding, short: Text, whole: Text, max_length: int) -> bool:
        """Return whether the tokens `e` of the prefix `short` suffice to cut `whole` to `max_length` tokens.

        In a pair, each text that was shortened to a prefix needs that many tokens.
        """
        cut = [i for i, less in enumerate(is_cut(short, whole)) if less]
        if not cut:
            return True
        assert self._beginnings is not None
        sides = e.sequence_ids
        return all(sides.count(i) >= max_length + self._beginnings.margin for i in cut)

    def word_spans(self, text: str, max_length: int) -> dict[int, tuple[int, int]]:
        """Return the place of each word of a text: its start and its end, exclusive, in Unicode code points.

        Words have the indices of `Encoded.words`. Those that begin far beyond the first `max_length` tokens
        are left out, so the cost depends on the tokens kept. So are those of white space alone, which
        RoBERTa's tokenizers make.
        """
        e = self._fast.encode(self._beginning(text, max_length), add_special_tokens=False)
        spans: dict[int, tuple[int, int]] = {}
        for word, (start, end) in zip(e.word_ids, e.offsets, strict=True):
            if word is not None:
                first, last = spans.get(word, (start, end))
                spans[word] = min(first, start), max(last, end)
        for word, (start, end) in list(spans.items()):
            inside = text[start:end].strip()
            start += len(text[start:end]) - len(text[start:end].lstrip())
            spans[word] = start, start + len(inside)
            if not inside:
                del spans[word]
        return spans

    def ids_of(self, words: Sequence[str]) -> list[list[int]]:
        """Return each word's ids as it stands after another word, at most five ids a word."""
        texts = self.encode([["a", word] for word in words], 8)
        return [[i for i, at in zip(text.ids, text.words, strict=True) if at == 1][:5] for text in texts]

    def whole_words(self) -> dict[int, str]:
        """The tokens that are whole words of letters, by id, in the order of the ids."""
        found = sorted((self._ours(i), self._word(token)) for token, i in self._fast.get_vocab().items())
        words = [(i, word) for i, word in found if word.isalpha()]
        alone = self.ids_of([word for _, word in words])
        return {i: word for (i, word), ids in zip(words, alone, strict=True) if ids == [i]}

    def _word(self, token: str) -> str:
        """The word that a token of the vocabulary begins, without the space before; "" if it begins none."""
        if not token.startswith(self._mark):
            return ""
        if self._mark == MARKS["ByteLevel"]:  # its tokens are bytes, written as letters
            return str(_BYTES.decode([token])).removeprefix(" ")
        return token.removeprefix(self._mark)

    def _cut(self, e: Encoding, limit: int) -> Encoded:
        ids = [self._ours(i) for i in e.ids] if self.pad_id else e.ids
        words, sides = e.word_ids, e.sequence_ids
        types = e.type_ids if 1 in e.type_ids else _types(sides)
        if len(ids) <= limit:
            return Encoded(ids, types, words)
        # A pair loses the end of its longer side, as in the reference implementation.
        keep = _pair_cut(sides, limit) if 1 in types else [*range(limit - 1), len(ids) - 1]
        return Encoded([ids[i] for i in keep], [types[i] for i in keep], [words[i] for i in keep], True)

    def _id(self, token: str) -> int:
        return self._ours(self._found(token))

    def _ours(self, source_id: int) -> int:
        return {0: self.pad_id, self.pad_id: 0}.get(source_id, source_id)

    def _found(self, token: str) -> int:
        found = self._fast.token_to_id(token)
        if found is None:
            raise UnsupportedModel(f"the tokenizer has no {token} token", field="source")
        return int(found)


def _at_once(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Split texts into runs of at most TEXTS_AT_ONCE texts and CHARACTERS_AT_ONCE characters."""
    start = size = 0
    for i, text in enumerate(texts):
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        if i > start and (i - start == TEXTS_AT_ONCE or size + length > CHARACTERS_AT_ONCE):
            yield texts[start:i]
            start, size = i, 0
        size += length
    if start < len(texts):
        yield texts[start:]


def _types(sides: list[int | None]) -> list[int]:
    """Token types for a source without them: 0 up to the second text, 1 from its first token on."""
    first = sides.index(1) if 1 in sides else len(sides)
    return [0] * first + [1] * (len(sides) - first)


def _pair_cut(sides: list[int | None], limit: int) -> list[int]:
    """The indices of a pair to keep: the longer text loses its end until the pair fits."""
    a, b = ([i for i, side in enumerate(sides) if side == which] for which in (0, 1))
    room = limit - sides.count(None)
    keep_a, keep_b = len(a), len(b)
    while keep_a + keep_b > room:
        if keep_a > keep_b:
            keep_a -= 1
        else:
            keep_b -= 1
    lost = {*a[keep_a:], *b[keep_b:]}
    return [i for i in range(len(sides)) if i not in lost]
