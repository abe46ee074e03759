"""llama.cpp in this process on one thread, by its C interface as the package `llama-cpp-python` has it."""

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
"""The forms beside the file's own, by name: 8 and 16 bits a weight."""


def written_forms(path: Path, folder: Path) -> dict[str, Path]:
    """The file as it is, and in other forms, which are written into `folder`."""
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
"""What the library calls must outlive all calls."""


@cache
def _library() -> Any:
    """The package, which says nothing on stderr."""
    found: Any = importlib.import_module("llama_cpp")
    _KEPT.append(found.llama_log_callback(lambda *_: None))
    found.llama_log_set(_KEPT[0], None)
    return found


class LlamaCpp:
    """A model with room for some sequences."""

    def __init__(self, c: Any, context: Any, vocab: int) -> None:
        self._c, self._context, self._vocab = c, context, vocab

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Forget everything, then read a prompt for each sequence. Returns the best next tokens."""
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        return [self._run([(i, 0, prompt)])[0] for i, prompt in enumerate(prompts)]

    def decode(self, tokens: Sequence[int], position: int) -> list[int]:
        """Write one token of each sequence, all in one batch. Returns the best next tokens."""
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
    """A model on one thread, with room for `tokens` tokens of each of so many sequences."""
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
