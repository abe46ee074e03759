"""Batches and hooks of merging without an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hmi.core import ModelId, ModelVersion, Objective, TokenPoint
from hmi.execution import BatchKey, Executor, Hook, Left, Rows
from hmi.execution.batch import offsets_of
from hmi.model.tasks import task_of
from hmi.stages.base import StageBatch, Stretch, Text
from hmi.stages.token_adaptation.audits import AuditRecords
from hmi.stages.token_adaptation.hook import MergeHook
from tests.hmi.execution.test_fused import DEPTH

MODEL, OBJECTIVE = ModelId("acme", "m"), Objective(agreement_under_load=0.9)
KEYS = {reads: BatchKey(("", ""), reads, exact=False) for reads in ("cls", "rows")}  # type: ignore[arg-type]


def version(*points: tuple[int, float, float, int], **fields: Any) -> ModelVersion:
    """A version with a profile of (gamma, score, agreement, rows)."""
    named = [dict(zip(("gamma", "score", "agreement", "rows"), point, strict=True)) for point in points]
    about: dict[str, Any] = {
        "version": 1, "artefact": "0" * 64, "domain": "r/d", "plot_version": "p", "root": "r",
        "root_version": "1", "task": "classification", "labels": ("a", "b"), "module": None,
        "max_length": 64, "metrics": {}, "bytes": 0, "created": "", "job": "j",
    }  # fmt: skip
    return ModelVersion(**{**about, "tokens": tuple(TokenPoint(**point) for point in named), **fields})


def text_of(index: int, tokens: int, **fields: Any) -> Text:
    about: dict[str, Any] = {
        "model": MODEL, "version": version(), "objective": OBJECTIVE, "cascade": None,
        "task": task_of("classification", ("a", "b")), "id": f"t{index}", "nonce": f"n{index}",
        "tokens": tokens, "whole": True, "merged": lambda output: output,
    }  # fmt: skip
    return Text(**{**about, **fields})


def single(tokens: int) -> list[Stretch]:
    """The one stretch between [CLS] and [SEP]."""
    return [(1, tokens - 2)] if tokens > 2 else []


def batch_of(
    tokens: Sequence[int], stretches: Mapping[int, Sequence[Stretch]] = {}, **fields: Any
) -> StageBatch:  # one segment, unless `stretches` says otherwise
    about: dict[str, Any] = {
        "key": KEYS["cls"], "layers": DEPTH, "texts": [text_of(i, n) for i, n in enumerate(tokens)],
        "ramp": None, "objectives": [OBJECTIVE] * len(tokens), "tokens": tokens,
        "versions": [(MODEL, version(), None)] * len(tokens),
        "stretches": lambda text: stretches.get(text, single(tokens[text])),
    }  # fmt: skip
    return StageBatch(**{**about, **fields})


def hook_of(
    tokens: Sequence[int], gammas: Mapping[int, int], audited: Collection[int] = (), **fields: Any
) -> MergeHook:
    ledger = fields.pop("ledger", None) or AuditRecords()
    return MergeHook(batch_of(tokens, **fields), gammas, audited, ledger)


def through_hook(hook: MergeHook, rows: Rows, layers: int = DEPTH) -> list[Rows]:
    """The rows that enter each layer, if layers change nothing."""
    found = []
    for layer in range(layers):
        if layer in hook.at:
            rows, left = hook(layer, rows)
            assert left is None
        found.append(rows)
    return found


def texts(lengths: Sequence[int], dim: int, seed: int = 3) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dim, generator=g) for n in lengths]


def ran(
    executor: Executor, parts: Sequence[Tensor], modules: Sequence[Any], *hooks: Hook, reads: str = "cls"
) -> list[Left]:
    packed = Rows.packed(torch.cat(list(parts)), offsets_of([len(part) for part in parts]))
    with torch.inference_mode():
        return list(executor.run(KEYS[reads], packed, modules, hooks))
