"""A run of training, whatever is trained: epochs, steps, averaged weights, and its state for checkpoints."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hmi.errors import InvalidData
from hmi.model.memory import keep_less_if_grown
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.stored_dtype import StoredDtype, int8_of
from hmi.model.text.batching import STEP_TOKENS, in_parts, length_grouped
from hmi.training.fit.optimisers import AdamW, load_optimiser, optimiser_tensors
from hmi.training.fit.plan import TrainPlan
from hmi.training.fit.reports import StepReport

AVERAGE_STEPS = 50
"""The weights are averaged over at most this many steps, where a decay d counts as 1 / (1 - d)
steps. Early in a training they are averaged over a tenth of the steps so far."""


class Learner(ABC):
    """Trains parts of an artefact on rows of some lengths, by a plan. It owns the optimiser."""

    def __init__(self, plan: TrainPlan, lengths: Sequence[int], groups: Sequence[dict[str, Any]]) -> None:
        """lengths: the tokens of each row. groups: the trained parameters with their learning rates."""
        self.plan, self._lengths = plan, lengths
        self.total = plan.epochs * -(-len(lengths) // plan.batch)
        self.optimiser = AdamW(groups, weight_decay=plan.weight_decay, fused=True)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self._trained = [p for group in groups for p in group["params"]] if plan.average else []
        self._average = [p.detach().clone() for p in self._trained]

    @property
    @abstractmethod
    def _parts(self) -> Mapping[str, nn.Module]:
        """The trained modules, by part of the artefact."""

    @abstractmethod
    def _loss_of(self, rows: Sequence[int]) -> Tensor:
        """The mean loss of some rows."""

    @abstractmethod
    def _shares(self, parts: Sequence[Sequence[int]]) -> list[float]:
        """The share of each part of a batch in its loss."""

    def _cut(self, rows: Sequence[int]) -> list[list[int]]:
        """Cut a batch into parts that fit into memory."""
        return list(in_parts(rows, self._lengths, STEP_TOKENS))

    def _clipped(self) -> list[nn.Parameter]:
        """The parameters whose gradients are clipped together."""
        return [p for part in self._parts.values() for p in part.parameters()]

    def epochs(self, report: StepReport, start: int = 0) -> Iterator[int]:
        """Train epoch by epoch. Yields each epoch's number, counted from 1, after its end, so that
        a job can write a checkpoint.

        report: called after each step. Raises InvalidData (diverged).
        """
        for epoch in range(start, self.plan.epochs):
            # Seeded by epoch, so that a resumed run equals an uninterrupted one.
            torch.manual_seed(self.plan.seed * 1009 + epoch)
            rng = random.Random(self.plan.seed * 1009 + epoch)
            done = epoch * -(-len(self._lengths) // self.plan.batch)
            for i, rows in enumerate(length_grouped(self._lengths, self.plan.batch, rng)):
                report(done + i + 1, self.total, self._step(rows, done + i))
            yield epoch + 1

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block, replace the weights by their exponential mean over the last steps
        (Polyak and Juditsky, 1992). Without `plan.average` they stay unchanged.

        With few rows, steps oscillate, and the mean cancels that.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for weight, mean in zip(self._trained, self._average, strict=True):
            weight.data, mean.data = mean.data, weight.data

    def state(self) -> Artefact:
        """Copies of all trained tensors, by part of the artefact."""
        return Artefact(
            **{
                name: {k: v.detach().clone() for k, v in part.state_dict().items()}
                for name, part in self._parts.items()
            }
        )

    def publishable(self, artefact: Artefact, rest: StoredDtype = "fp16") -> Artefact:
        """The tensors as they are published: in fp16, or the module's matrices in int8. They are also loaded
        into the model, so that `predict` gives what users will get. Raises InvalidData if a number is not
        finite in fp16."""
        halved = artefact.map(lambda value: value.half())
        for name, value in halved.joined().items():
            if not bool(torch.isfinite(value).all()):
                raise diverged(f"{name} is not finite in 16 bits")
        published = replace(halved, module=int8_of(halved.module)) if rest == "int8" else halved
        self.load(Artefact.split(published.joined()).map(lambda value: value.float()))
        return published

    def load(self, artefact: Artefact) -> None:
        """Load published or checkpointed tensors. The inverse of `state`."""
        for name, part in self._parts.items():
            part.load_state_dict(dict(getattr(artefact, name)))

    def start_from(self, artefact: Artefact) -> None:
        """Start from another model's tensors. Tensors that it lacks stay freshly initialised; those
        that are not trained here are ignored."""
        fresh, given = self.state().joined(), artefact.joined()
        self.load(Artefact.split({name: given.get(name, value) for name, value in fresh.items()}))

    def optimiser_state(self) -> dict[str, Tensor]:
        """AdamW's state and the averaged weights as a flat mapping, for a checkpoint."""
        average = {f"average.{i}": mean for i, mean in enumerate(self._average)}
        return optimiser_tensors(self.optimiser) | average

    def load_optimiser(self, state: dict[str, Tensor]) -> None:
        load_optimiser(self.optimiser, state)
        for i, mean in enumerate(self._average):
            mean.copy_(state[f"average.{i}"])

    def _step(self, rows: list[int], step: int) -> float:
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * _linear(step, self.total)
        self.optimiser.zero_grad(set_to_none=True)
        parts = self._cut(rows)
        shares = self._shares(parts)
        value = 0.0
        for part, share in zip(parts, shares, strict=True):
            loss = share * self._loss_of(part)
            value += loss.item()
            if not math.isfinite(value):
                raise diverged(f"the loss is {value} at step {step + 1}")
            loss.backward()
            keep_less_if_grown()
        nn.utils.clip_grad_norm_(self._clipped(), 1.0)
        self.optimiser.step()
        if self._average:
            torch._foreach_lerp_(self._average, [p.detach() for p in self._trained], 1 - _decay(step))
        return value


def diverged(what: str) -> InvalidData:
    return InvalidData(f"the training diverged ({what}): use a lower lr", field="options.lr")


def _linear(step: int, total: int) -> float:
    """The factor of the learning rate: 6% of the steps warm up, then it decays linearly."""
    return min((step + 1) / (0.06 * total), max(0.0, (total - step) / (0.94 * total)))


def _decay(step: int) -> float:
    """The decay of the averaged weights at a step, counted from 0. At step 0 it is 0, which drops
    the untrained weights."""
    return min(step / (step + 10), 1 - 1 / AVERAGE_STEPS)
