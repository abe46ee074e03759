"""Fine-tunes a backbone and its head: a tenant's module on PLOT features, or an alternative to
compare it with."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.errors import InvalidData
from hmi.model.memory import keep_less_if_grown
from hmi.model.sources.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tenant.alignment import Alignment
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import Head, head_input, head_input_size, reads_cls_only, widened
from hmi.model.tenant.modules import new_module
from hmi.model.tenant.stored_dtype import StoredDtype, int8_of
from hmi.model.text.batching import READ_TOKENS, STEP_TOKENS, in_parts, length_grouped
from hmi.model.text.lexical import Lexical, aligned_in, not_aligned
from hmi.training.fit.alignment import fit_alignment
from hmi.training.fit.backbones import Backbone, Examples, ModuleBackbone, PromptBackbone
from hmi.training.fit.optimisers import AdamW, load_optimiser, optimiser_tensors
from hmi.training.fit.plan import TrainPlan, plan_reading
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import StepReport
from hmi.training.tasks.objectives import OBJECTIVES
from hmi.training.tasks.transitions import Transitions

LEXICAL_LR, LEXICAL_DROPOUT = 5e-3, 0.3
"""Tuned on dev (docs/design/0003-tenant-module.md)."""
ALIGNMENT = "lexical.alignment."
TRANSITIONS_LR = 1e-2
"""No other rate was tried."""
AVERAGE_STEPS = 50
"""The weights are averaged over at most this many steps, where a decay d counts as 1 / (1 - d)
steps. Early in a training they are averaged over a tenth of the steps so far."""


def tenant_trainer(root: Root, module: ModuleSpec, plan: TrainPlan, train: Examples) -> Trainer:
    """A trainer of a fresh tenant module in the root's frozen upper layers."""
    torch.manual_seed(plan.seed)
    fresh = new_module(module, root.info.shape, len(root.upper))
    return Trainer(ModuleBackbone(root.upper, fresh, root.info.shape.heads), root.dim, plan, train)


def reading_trainer(root: Root, module: ModuleSpec, task: TaskKind, artefact: Artefact) -> Trainer:
    """A trainer that has a published artefact's weights and only predicts."""
    plan, nothing = plan_reading(task, artefact), Examples([], [], lambda rows: [], [])
    trainer = tenant_trainer(root, module, plan, nothing)
    trainer.start_from(artefact.map(lambda value: value.float()))
    return trainer


def prompt_trainer(reading: Trainer, prompts: Tensor, plan: TrainPlan, train: Examples) -> Trainer:
    """A trainer of prompts [layers, count, dim] for the model of `reading`, of which nothing else changes.

    plan: of the same task, with the lexical features and transitions of the plan of `reading`.
    """
    assert isinstance(reading.backbone, ModuleBackbone)
    reading.backbone.module.requires_grad_(False)
    return Trainer(PromptBackbone(reading.backbone, prompts), reading.dim, plan, train, frozen=reading)


class Trainer:
    """One run of fine-tuning. It owns the head and the optimiser."""

    def __init__(
        self, backbone: Backbone, dim: int, plan: TrainPlan, train: Examples, frozen: Trainer | None = None
    ) -> None:
        """frozen: a trainer whose head, lexical features and transitions are used as they are; then only the
        backbone's own part is trained. None: they are new, and trained too."""
        torch.manual_seed(plan.seed)
        self.backbone, self.dim, self.plan, self.train = backbone, dim, plan, train
        self.total = plan.epochs * -(-len(train) // plan.batch)
        self._offsets: Tensor | None = None  # [rows, labels]: scores of the training rows' alignments
        if frozen is None:
            size = head_input_size(plan.task, dim, paired=plan.paired)
            self.head = Head(size, plan.labels, queries=plan.queries, dim=dim)
            self.lexical = self._new_lexical()
            self.transitions = Transitions(plan.labels) if plan.transitions else None
        else:
            self.head, self.lexical, self.transitions = frozen.head, frozen.lexical, frozen.transitions
            for part in (self.head, self.lexical, self.transitions):
                if part is not None:
                    part.requires_grad_(False)
        self._own = frozen is None
        groups = self._groups()
        self.optimiser = AdamW(groups, weight_decay=plan.weight_decay, fused=True)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self._trained = [p for group in groups for p in group["params"]] if plan.average else []
        self._average = [p.detach().clone() for p in self._trained]

    def epochs(self, report: StepReport, start: int = 0) -> Iterator[int]:
        """Train epoch by epoch. Yields each epoch's number, counted from 1, after its end, so that
        a job can write a checkpoint.

        report: called after each step. Raises InvalidData (diverged).
        """
        for epoch in range(start, self.plan.epochs):
            # Seeded by epoch, so that a resumed run equals an uninterrupted one.
            torch.manual_seed(self.plan.seed * 1009 + epoch)
            rng = random.Random(self.plan.seed * 1009 + epoch)
            done = epoch * -(-len(self.train) // self.plan.batch)
            for i, rows in enumerate(length_grouped(self.train.lengths, self.plan.batch, rng)):
                report(done + i + 1, self.total, self._step(rows, done + i))
            yield epoch + 1

    @torch.inference_mode()
    def predict(
        self, examples: Examples, *, exact: bool = False, backbone: Backbone | None = None
    ) -> list[Tensor]:
        """The head's outputs for each row: [labels], for tagging [T_i, labels]. exact: compute in
        fp32, as the server does. backbone: one to use instead of the trainer's own."""
        out: list[Tensor] = [torch.empty(0)] * len(examples)
        for batch in length_grouped(examples.lengths, 64, None):
            for rows in in_parts(batch, examples.lengths, READ_TOKENS):
                bf16 = self.plan.bf16 and not exact
                logits, mask = self._forward(examples, rows, 0.0, bf16=bf16, backbone=backbone)
                keep_less_if_grown()
                for i, row in enumerate(rows):
                    out[row] = logits[i, : int(mask[i].sum())] if self.plan.task == "tagging" else logits[i]
        return out

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

    def reading(self, task: TaskKind) -> TaskKind:
        """The task that decodes the outputs of `predict`: `task`, with the learnt transitions if
        there are any."""
        return task if self.transitions is None else task.with_transitions(self.transitions.table)

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
        known = {name: value for name, value in given.items() if name in fresh}
        if self._offsets is not None:  # the alignment was fitted on the rows given
            known = {name: value for name, value in known.items() if not name.startswith(ALIGNMENT)}
        if "out.weight" in artefact.head:  # an imported head, or one of an earlier release, has fewer inputs
            known["head.out.weight"] = widened(known["head.out.weight"], self.head.out.in_features)
        self.load(Artefact.split({**fresh, **known}))

    def optimiser_state(self) -> dict[str, Tensor]:
        """AdamW's state and the averaged weights as a flat mapping, for a checkpoint."""
        average = {f"average.{i}": mean for i, mean in enumerate(self._average)}
        return optimiser_tensors(self.optimiser) | average

    def load_optimiser(self, state: dict[str, Tensor]) -> None:
        load_optimiser(self.optimiser, state)
        for i, mean in enumerate(self._average):
            mean.copy_(state[f"average.{i}"])

    @property
    def _parts(self) -> dict[str, nn.Module]:
        """The trained modules, by part of the artefact."""
        name = "prompts" if isinstance(self.backbone, PromptBackbone) else "module"
        parts = {name: self.backbone.trained}
        if self._own:
            parts |= {"head": self.head, "lexical": self.lexical, "transitions": self.transitions}
        return {name: part for name, part in parts.items() if part is not None}

    def _groups(self) -> list[dict[str, Any]]:
        """The trained parameters with their learning rates, as an optimiser takes them."""
        plan, backbone = self.plan, self.backbone
        groups: list[dict[str, Any]] = []
        if backbone.trained is not None:
            groups.append({"params": list(backbone.trained.parameters()), "lr": plan.lr})
        if not self._own:
            return groups
        groups.append({"params": list(self.head.parameters()), "lr": max(plan.lr, 1e-3)})
        if self.lexical is not None:
            groups.append({"params": list(self.lexical.parameters()), "lr": LEXICAL_LR, "weight_decay": 0.0})
        if self.transitions is not None:
            groups.append(
                {"params": list(self.transitions.parameters()), "lr": TRANSITIONS_LR, "weight_decay": 0.0}
            )
        return groups

    def _new_lexical(self) -> Lexical | None:
        """Lexical features at the start. The alignment of pairs is fitted here, since no step trains it."""
        plan, train = self.plan, self.train
        if not plan.lexical:
            return None
        if not plan.aligned:
            return Lexical(plan.lexical, plan.labels)
        if train.bags is None or not len(train):
            return Lexical(plan.lexical, plan.labels, Alignment(plan.labels, self.dim))
        bags = train.bags

        def aligned(rows: Sequence[int]) -> Tensor:
            return torch.cat([aligned_in(bags(part)) for part in in_parts(rows, train.lengths, READ_TOKENS)])

        alignment, self._offsets = fit_alignment(aligned, train.targets, plan.labels, self._labels_loss)
        return Lexical(plan.lexical, plan.labels, alignment)

    def _step(self, rows: list[int], step: int) -> float:
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * _linear(step, self.total)
        self.optimiser.zero_grad(set_to_none=True)
        parts = list(in_parts(rows, self.train.lengths, STEP_TOKENS))
        shares = self._shares(parts)
        value = 0.0
        for part, share in zip(parts, shares, strict=True):
            logits, _ = self._forward(
                self.train, part, self.plan.dropout, bf16=self.plan.bf16, offsets=self._offsets
            )
            loss = share * self._loss(logits, [self.train.targets[i] for i in part])
            value += loss.item()
            if not math.isfinite(value):
                raise diverged(f"the loss is {value} at step {step + 1}")
            loss.backward()
            keep_less_if_grown()
        # The lexical table is not clipped: new words give it large gradients, which would scale
        # down all others.
        nn.utils.clip_grad_norm_(
            [p for part in self._parts.values() if part is not self.lexical for p in part.parameters()], 1.0
        )
        self.optimiser.step()
        if self._average:
            torch._foreach_lerp_(self._average, [p.detach() for p in self._trained], 1 - _decay(step))
        return value

    def _shares(self, parts: Sequence[Sequence[int]]) -> list[float]:
        """The share of each part of a batch in its loss."""
        if len(parts) == 1:
            return [1.0]
        weights = self._weights()
        masses = [
            OBJECTIVES[self.plan.task].mass([self.train.targets[i] for i in part], weights) for part in parts
        ]
        total = math.fsum(masses) or 1.0  # no word has a token, so each loss is 0
        return [mass / total for mass in masses]

    def _loss(self, logits: Tensor, targets: list[Sequence[float]]) -> Tensor:
        if self.transitions is not None:
            return self.transitions.loss(logits, targets)
        return self._labels_loss(logits, targets)

    def _labels_loss(self, logits: Tensor, targets: Sequence[Sequence[float]]) -> Tensor:
        return OBJECTIVES[self.plan.task].loss(logits, targets, self._weights())

    def _weights(self) -> Tensor | None:
        return None if self.plan.weights is None else torch.tensor(self.plan.weights)

    def _forward(
        self,
        examples: Examples,
        rows: Sequence[int],
        dropout: float,
        *,
        bf16: bool,
        backbone: Backbone | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits and the token mask of a batch. offsets: the scores of all rows' alignments; None: they are
        computed."""
        task, paired = self.plan.task, self.plan.paired
        cls_only = reads_cls_only(task, paired=paired)
        with arithmetic(bf16=bf16):
            h = (backbone or self.backbone)(examples, rows, cls_only=cls_only, dropout=dropout)
        read = head_input(task, h.last.float(), h.before.float(), h.types, h.mask, paired=paired)
        logits = self.head(self.head.with_attended(read, h.before.float(), h.mask), dropout)
        if self.lexical is not None:
            assert examples.bags is not None
            bags = examples.bags(rows) if offsets is None else not_aligned(examples.bags(rows))
            logits = self.lexical(logits, bags, LEXICAL_DROPOUT if dropout else 0.0)
        if offsets is not None:
            logits = logits + offsets[list(rows)]
        return logits, h.mask


def diverged(what: str) -> InvalidData:
    return InvalidData(f"the training diverged ({what}): use a lower lr", field="options.lr")


def _linear(step: int, total: int) -> float:
    """The factor of the learning rate: 6% of the steps warm up, then it decays linearly."""
    return min((step + 1) / (0.06 * total), max(0.0, (total - step) / (0.94 * total)))


def _decay(step: int) -> float:
    """The decay of the averaged weights at a step, counted from 0. At step 0 it is 0, which drops
    the untrained weights."""
    return min(step / (step + 10), 1 - 1 / AVERAGE_STEPS)
