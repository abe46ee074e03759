"""llama.cpp in this process, on one thread. The package `llama-cpp-python` gives its C interface."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FORMS = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "f16": "LLAMA_FTYPE_MOSTLY_F16"}
"""Forms with 8 and 16 bits a weight. llama.cpp's name of each, by ours."""


def written_forms(path: Path, folder: Path) -> dict[str, Path]:
    """Write the model in the other forms into `folder`. Returns each form's path, that of the given file as
    `as_shipped`."""
    c = _library()
    found = {"as_shipped": path}
    for name, form in FORMS.items():
        params: Any = c.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = getattr(c, form), True, 1
        found[name] = folder / f"{name}.gguf"
        done = c.llama_model_quantize(str(path).encode(), str(found[name]).encode(), ctypes.byref(params))
        assert done == 0, f"llama.cpp cannot write {name}"
    return found


_KEPT: list[Any] = []
"""Callbacks that llama.cpp holds. Python must not free them."""


@cache
def _library() -> Any:
    """Import the package, and switch its log off."""
    found: Any = importlib.import_module("llama_cpp")
    _KEPT.append(found.llama_log_callback(lambda *_: None))
    found.llama_log_set(_KEPT[0], None)
    return found


class LlamaCpp:
    """An open model, with room for some sequences."""

    def __init__(self, c: Any, context: Any, vocab: int) -> None:
        self._c, self._context, self._vocab = c, context, vocab

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Forget all sequences, then read a prompt for each. Returns each one's best next token."""
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        return [self._run([(i, 0, prompt)])[0] for i, prompt in enumerate(prompts)]

    def decode(self, tokens: Sequence[int], position: int) -> list[int]:
        """Run one token of each sequence, all in one batch. Returns each one's best next token.

        position: the tokens' place in their sequences, from 0.
        """
        return self._run([(i, position, [token]) for i, token in enumerate(tokens)])

    def _run(self, parts: Sequence[tuple[int, int, Sequence[int]]]) -> list[int]:
        c, count = self._c, sum(len(ids) for _, _, ids in parts)
        batch = c.llama_batch_init(count, 0, 1)
        try:
            ends, at = [], 0
            for sequence, position, ids in parts:
                for i, token in enumerate(ids):
                    batch.token[at], batch.pos[at] = token, position + i
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                    batch.logits[at] = i == len(ids) - 1
                    at += 1
                ends.append(at - 1)
            batch.n_tokens = count
            done = c.llama_decode(self._context, batch)
            assert done == 0, f"llama.cpp gives {done}"
            return [self._best(end) for end in ends]
        finally:
            c.llama_batch_free(batch)

    def _best(self, at: int) -> int:
        scores = self._c.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(scores, (self._vocab,)).argmax())


@contextmanager
def opened(path: Path, sequences: int, tokens: int) -> Iterator[LlamaCpp]:
    """Context manager: opens a model on one thread. It has room for `tokens` tokens of each sequence."""
    c = _library()
    model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
    params: Any = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = sequences * tokens, 2048, 512
    params.n_seq_max, params.n_threads, params.n_threads_batch = sequences, 1, 1
    context = c.llama_init_from_model(model, params)
    try:
        yield LlamaCpp(c, context, c.llama_vocab_n_tokens(c.llama_model_get_vocab(model)))
    finally:
        c.llama_free(context)
        c.llama_model_free(model)
