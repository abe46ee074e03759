"""Fine-tunes a backbone and its head: a tenant's module on PLOT features, or an alternative to
compare it with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.model.memory import keep_less_if_grown
from hmi.model.sources.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tenant.alignment import Alignment
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import Head, head_input, head_input_size, reads_cls_only, widened
from hmi.model.tenant.modules import new_module
from hmi.model.text.batching import READ_TOKENS, in_parts, length_grouped
from hmi.model.text.lexical import Lexical, aligned_in, not_aligned
from hmi.training.fit.alignment import fit_alignment
from hmi.training.fit.backbones import Backbone, Examples, ModuleBackbone, PromptBackbone
from hmi.training.fit.learner import Learner
from hmi.training.fit.plan import TrainPlan, plan_reading
from hmi.training.fit.precision import arithmetic
from hmi.training.tasks.objectives import OBJECTIVES
from hmi.training.tasks.transitions import Transitions

LEXICAL_LR, LEXICAL_DROPOUT = 5e-3, 0.3
"""Tuned on dev (docs/design/0003-tenant-module.md)."""
ALIGNMENT = "lexical.alignment."
TRANSITIONS_LR = 1e-2
"""No other rate was tried."""


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


class Trainer(Learner):
    """One run of fine-tuning. It owns the head."""

    def __init__(
        self, backbone: Backbone, dim: int, plan: TrainPlan, train: Examples, frozen: Trainer | None = None
    ) -> None:
        """frozen: a trainer whose head, lexical features and transitions are used as they are; then only the
        backbone's own part is trained. None: they are new, and trained too."""
        torch.manual_seed(plan.seed)
        self.backbone, self.dim, self.plan, self.train = backbone, dim, plan, train
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
        super().__init__(plan, train.lengths, self._groups())

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

    def reading(self, task: TaskKind) -> TaskKind:
        """The task that decodes the outputs of `predict`: `task`, with the learnt transitions if
        there are any."""
        return task if self.transitions is None else task.with_transitions(self.transitions.table)

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

    @property
    def _parts(self) -> dict[str, nn.Module]:
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

    def _clipped(self) -> list[nn.Parameter]:
        # The lexical table is not clipped: new words give it large gradients, which would scale
        # down all others.
        return [p for part in self._parts.values() if part is not self.lexical for p in part.parameters()]

    def _loss_of(self, rows: Sequence[int]) -> Tensor:
        plan = self.plan
        logits, _ = self._forward(self.train, rows, plan.dropout, bf16=plan.bf16, offsets=self._offsets)
        return self._loss(logits, [self.train.targets[i] for i in rows])

    def _shares(self, parts: Sequence[Sequence[int]]) -> list[float]:
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
