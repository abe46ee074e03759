"""A batch's way through the layers: hooks, texts that leave. Executors differ in how a layer runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from hmi.execution import trace
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of


class LayerRun(Protocol):
    """One executor's run of one batch, layer by layer."""

    def begin(self, rows: Rows) -> None:
        """Let the next layer start from these rows. Called at the beginning and after a hook."""
        ...

    def layer(self, index: int, rows: Rows, first_only: bool) -> Tensor:
        """Return the layer's result [rows or more, dim], or [texts or more, dim] of each text's first row.

        What lies beyond the last row or text is padding.
        """
        ...


@torch.inference_mode()
def run_layers(
    layers: int, key: BatchKey, rows: Rows, hooks: Sequence[Hook], step: LayerRun
) -> Iterator[Left]:
    """Run a batch as `Executor.run` says."""
    lengths = {text: b - a for text, (a, b) in zip(rows.texts, rows.spans(), strict=True)}
    below, x = rows.x, rows.x
    step.begin(rows)
    for i in range(layers):
        for hook in hooks:
            if i not in hook.at:
                continue
            before = rows
            rows, left = hook(i, rows)
            if left is not None:
                yield left
            if not rows.texts:
                return
            if rows is not before:
                step.begin(rows)
        first_only = i == layers - 1 and key.reads == "cls"
        with trace.span("layer"):
            below, x = rows.x, step.layer(i, rows, first_only)
        if not first_only:
            rows = replace(rows, x=x[: rows.offsets[-1]])
    offsets = rows.offsets if rows.source is None else offsets_of([lengths[t] for t in rows.texts])
    ended = rows.by_token(rows.x) if key.reads == "rows" else x[: len(rows.texts)]
    yield Left(rows.texts, ended, rows.by_token(below), offsets, after=layers, tokens=rows.tokens)
