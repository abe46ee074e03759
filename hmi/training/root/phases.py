"""A phase of a root's training. It may be stopped at any step: resumed from its checkpoint, it ends with
the same bits as an uninterrupted one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.memory import keep_less_if_grown
from hmi.model.tenant.artefact import tensors_below
from hmi.training.fit.optimisers import AdamW, load_optimiser, optimiser_tensors
from hmi.training.fit.reports import StepReport

WARMUP_STEPS = 20
LAST_RATE = 0.02
"""The learning rate of the last step, as a share of the highest."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters by name, and the learning rate that they share."""

    parameters: Mapping[str, nn.Parameter]
    lr: float


class Keeper:
    """Owns the checkpoint of one phase: a file that is replaced at most every `every_s` seconds."""

    def __init__(self, path: Path, every_s: float, kept: Callable[[], None]) -> None:
        self._path, self._every_s, self._kept = path, every_s, kept
        self._last = time.monotonic()

    def keep(self, about: dict[str, Any], tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Write a checkpoint if one is due, then call `kept`. Raises StorageFull."""
        if time.monotonic() - self._last < self._every_s:
            return
        write_checkpoint(self._path, tensors(), about)
        self._last = time.monotonic()
        self._kept()

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint; None if there is none. Raises Unavailable."""
        return read_checkpoint(self._path)


def run_phase(
    groups: Sequence[ParameterGroup],
    steps: int,
    loss_of: Callable[[int], Tensor],
    report: StepReport,
    *,
    clip: float,
    keeper: Keeper | None = None,
) -> None:
    """Train the groups in place for `steps` steps of AdamW, at a rate that falls as a cosine.

    loss_of: gives the loss of a step, counted from 0. It must depend on the step and the weights alone, so
    it draws its batch with a seed of the step. clip: the largest norm of a step's gradients. report: called
    after each step; it may raise to stop the training. Gradients are switched off at the end.
    """
    named = {name: p for group in groups for name, p in group.parameters.items()}
    trained = list(named.values())
    for p in trained:
        p.requires_grad_(True)
    optimiser = AdamW(
        [{"params": list(group.parameters.values()), "lr": group.lr} for group in groups],
        weight_decay=0.0,
        fused=True,
    )

    def state() -> dict[str, Tensor]:
        return {**{f"weights.{k}": p for k, p in named.items()}, **optimiser_tensors(optimiser)}

    for step in range(_resumed(keeper, named, optimiser, steps), steps):
        for group, made in zip(groups, optimiser.param_groups, strict=True):
            made["lr"] = group.lr * _rate(step, steps)
        loss = loss_of(step)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, clip)
        optimiser.step()
        if keeper is not None:
            keeper.keep({"step": step + 1, "steps": steps}, state)
        report(step + 1, steps, loss.item())
        keep_less_if_grown()
    for p in trained:
        p.requires_grad_(False)
        p.grad = None


def _resumed(
    keeper: Keeper | None, named: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer, steps: int
) -> int:
    """Load the phase's checkpoint, if there is one of the same phase. Returns the number of steps done."""
    found = None if keeper is None else keeper.read()
    if found is None:
        return 0
    tensors, about = found
    weights = tensors_below(tensors, "weights")
    if about.get("steps") != steps or {k: w.shape for k, w in weights.items()} != {
        k: p.shape for k, p in named.items()
    }:
        return 0  # another release wrote it
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(weights[name])
    load_optimiser(optimiser, tensors)
    return int(about["step"])


def _rate(step: int, total: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / total))
    return min(1.0, (step + 1) / WARMUP_STEPS) * (LAST_RATE + (1 - LAST_RATE) * cosine)
