"""The root's tokenizer: texts, pairs and pre-split words to ids, with truncation made visible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from hmi.errors import UnsupportedModel
from hmi.model.batching import Encoded

Text = str | tuple[str, str] | list[str]
"""A text, a pair of texts, or the words of a text to tag."""


class Tokenizer:
    """Wraps a `tokenizer.json`; thread-safe."""

    def __init__(self, path: Path) -> None:
        try:
            self._fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises a bare Exception
            raise UnsupportedModel(f"{path} is not a readable tokenizer.json: {error}", field="source") from error
        self._fast.no_padding()
        self._fast.no_truncation()
        self.cls_id = self._id("[CLS]")
        self.sep_id = self._id("[SEP]")
        self.mask_id = self._id("[MASK]")
        if self._id("[PAD]") != 0:
            raise UnsupportedModel("the tokenizer's [PAD] is not id 0, which a PLOT keeps for 'no neighbour'")

    def encode(self, texts: Sequence[Text], max_length: int) -> list[Encoded]:
        """Tokenise; a text of more than `max_length` tokens is cut there, its last token being [SEP]."""
        singles = [i for i, t in enumerate(texts) if not isinstance(t, list)]
        words = [i for i, t in enumerate(texts) if isinstance(t, list)]
        out: dict[int, Encoded] = {}
        for at, pretokenised in ((singles, False), (words, True)):
            if at:
                batch = self._fast.encode_batch([texts[i] for i in at], is_pretokenized=pretokenised)
                out.update((i, self._cut(e, max_length)) for i, e in zip(at, batch, strict=True))
        return [out[i] for i in range(len(texts))]

    @property
    def vocab_size(self) -> int:
        return int(self._fast.get_vocab_size())

    def _cut(self, e: Encoding, limit: int) -> Encoded:
        ids, types, words = e.ids, e.type_ids, e.word_ids
        if len(ids) <= limit:
            return Encoded(ids, types, words)
        # A pair loses the end of its longer side, as in the reference implementation.
        keep = _pair_cut(types, limit) if 1 in types else [*range(limit - 1), len(ids) - 1]
        return Encoded([ids[i] for i in keep], [types[i] for i in keep], [words[i] for i in keep], True)

    def _id(self, token: str) -> int:
        found = self._fast.token_to_id(token)
        if found is None:
            raise UnsupportedModel(f"the tokenizer has no {token} token", field="source")
        return int(found)


def _pair_cut(types: list[int], limit: int) -> list[int]:
    """Indices kept of [CLS] a… [SEP] b… [SEP]: the longer side loses its end until the pair fits."""
    first = types.index(1)
    a, b = list(range(1, first - 1)), list(range(first, len(types) - 1))
    room = limit - 3
    keep_a, keep_b = len(a), len(b)
    while keep_a + keep_b > room:
        if keep_a > keep_b:
            keep_a -= 1
        else:
            keep_b -= 1
    return [0, *a[:keep_a], first - 1, *b[:keep_b], len(types) - 1]
