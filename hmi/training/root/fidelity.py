"""Measures how far a root's states are from its source model's, on held-out texts, by kind of text.

| measure                | of what                                                                   |
|------------------------|---------------------------------------------------------------------------|
| `split_relative_error` | squared error at the split over the variance there, without [CLS]         |
| `last_relative_error`  | the same after the last layer, with [CLS]                                 |
| `token_cosine`         | mean cosine of the tokens' states after the last layer                    |
| `cls_cosine`           | cosine of the [CLS] states after the last layer                           |
| `mean_cosine`          | cosine of the texts' mean states after the last layer, as for embeddings  |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.encoder import Encoder
from hmi.model.sources.lower import InputBias, LocalLower
from hmi.model.text.batching import Encoded
from hmi.training.root.distillation import PaddedBatch, compute_features, make_batch, run_upper

SHORT = 12
"""Tokens of a short text, such as an utterance, with [CLS] and [SEP]."""
AT_ONCE = 20


@torch.inference_mode()
def measure_fidelity(
    lower: LocalLower, bias: InputBias, upper: nn.ModuleList, teacher: Encoder, batches: Sequence[PaddedBatch]
) -> dict[str, float]:
    """All measures over `batches`, rounded to four places."""
    states: dict[str, list[Tensor]] = {name: [] for name in ("split", "split_true", "last", "last_true")}
    cls, mean = [], []
    for batch in batches:
        keep = batch.mask.clone()
        keep[:, 0] = False
        split = compute_features(lower, bias, batch)
        states["split"].append(split[keep])
        states["split_true"].append(teacher(batch.ids, batch.mask, batch.types, upto=lower.depth)[keep])
        last = run_upper(upper, split, batch.mask, teacher.shape.heads)
        true = teacher(batch.ids, batch.mask, batch.types)
        states["last"].append(last[batch.mask])
        states["last_true"].append(true[batch.mask])
        cls.append(F.cosine_similarity(last[:, 0], true[:, 0], -1))
        mean.append(F.cosine_similarity(_mean(last, batch.mask), _mean(true, batch.mask), -1))
    whole = {name: torch.cat(parts) for name, parts in states.items()}
    found = {
        "split_relative_error": _relative(whole["split"], whole["split_true"]),
        "last_relative_error": _relative(whole["last"], whole["last_true"]),
        "token_cosine": F.cosine_similarity(whole["last"], whole["last_true"], -1).mean(),
        "cls_cosine": torch.cat(cls).mean(),
        "mean_cosine": torch.cat(mean).mean(),
    }
    return {name: round(value.item(), 4) for name, value in found.items()}


def fidelity_report(
    parts: tuple[LocalLower, nn.ModuleList, InputBias],
    teacher: Encoder,
    texts: Mapping[str, Sequence[Encoded]],
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The measures over all texts, and by kind. The kind `short` is added: the first tokens of every text."""
    lower, upper, bias = parts
    every = [text for some in texts.values() for text in some]
    kinds = {**texts, "short": [_beginning(text) for text in every]}
    by_kind = {
        kind: measure_fidelity(lower, bias, upper, teacher, _batches(some)) for kind, some in kinds.items()
    }
    if len(texts) == 1:
        return by_kind[next(iter(texts))], by_kind
    return measure_fidelity(lower, bias, upper, teacher, _batches(every)), by_kind


def _batches(texts: Sequence[Encoded]) -> list[PaddedBatch]:
    return [make_batch(texts[i : i + AT_ONCE]) for i in range(0, len(texts), AT_ONCE)]


def _beginning(text: Encoded) -> Encoded:
    """The first tokens of a text (of a pair: of its first text), followed by the text's last token, [SEP]."""
    most = text.types.index(1) if 1 in text.types else len(text)
    keep = [*range(min(SHORT, most) - 1), len(text) - 1]
    return Encoded(
        [text.ids[i] for i in keep], [0] * len(keep), [text.words[i] for i in keep], len(keep) < len(text)
    )


def _mean(rows: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].to(rows.dtype)
    total: Tensor = (rows * weights).sum(1) / weights.sum(1)
    return total


def _relative(got: Tensor, want: Tensor) -> Tensor:
    return ((got - want) ** 2).sum() / ((want - want.mean(0)) ** 2).sum()
