"""The source model, the root made from it, and the features of texts that the upper layers read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.cases.quality.tasks import QualityTask
from hmi.model.network.encoder import Encoder
from hmi.model.sources.root import Root
from hmi.model.text.batching import Encoded, length_grouped, pad_ids
from hmi.training.fit.features import features_of
from hmi.training.fit.precision import arithmetic
from plot_store import Reader

AT_ONCE = 32

Opened = Callable[[QualityTask], Reader]
"""Opens the PLOT of a task's domain."""


@dataclass(frozen=True)
class Encoders:
    """A root, its source model, and the PLOTs by task."""

    source: Encoder
    root: Root
    plot_of: Opened
    full: Encoders | None = None
    """The same source, with a root of it that computes all layers."""

    @property
    def source_upper(self) -> nn.ModuleList:
        return self.source.layers[self.root.info.split :]

    def features(self, reads: str, task: QualityTask, texts: Sequence[Encoded]) -> list[Tensor]:
        """Return what a backbone reads of each text: ids int64 [T_i], or rows fp16 [T_i, dim]."""
        if reads == "ids":
            return [torch.tensor(text.ids) for text in texts]
        if reads in ("lower", "last"):
            return self._true_states(texts, self.root.info.split if reads == "lower" else None)
        out: list[Tensor] = []
        with self.plot_of(task) as reader:
            for at in range(0, len(texts), AT_ONCE):
                out += [x.half() for x in features_of(self.root, reader, texts[at : at + AT_ONCE])]
        return out

    @torch.inference_mode()
    def _true_states(self, texts: Sequence[Encoded], upto: int | None) -> list[Tensor]:
        out: list[Tensor] = [torch.empty(0)] * len(texts)
        for rows in length_grouped([len(text) for text in texts], AT_ONCE, None):
            ids, types = pad_ids([texts[i].ids for i in rows]), pad_ids([texts[i].types for i in rows])
            mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(texts[i]) for i in rows])[:, None]
            with arithmetic(bf16=True):
                hidden = self.source(ids, mask, types, upto=upto)
            for i, states in zip(rows, hidden, strict=True):
                out[i] = states[: len(texts[i])].half()
        return out


def source_of(root: Root) -> str:
    """Return the beginning of the hash of the root's source, by which runs name it."""
    return root.info.source.get("sha256", "")[:12]


def content_of(root: Root) -> str:
    """Return a hash of the root's weights, which is the same for every import of them."""
    return hashlib.sha256("".join(sorted(root.info.files.values())).encode()).hexdigest()[:12]
