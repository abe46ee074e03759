"""Makes the lower layers of a language model local, and measures how far that takes it from its source.

| measure                | of what                                                                         |
|------------------------|---------------------------------------------------------------------------------|
| `split_relative_error` | squared error of rows over the states' variance, without a text's first tokens  |
| `kl`                   | mean of KL(source's next token, root's) over all tokens, in nats                |
| `perplexity_ratio`     | the root's perplexity over the source's                                         |
| `source_perplexity`    | the source's own                                                                |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.model.network.decoder import Decoder
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.text.batching import Encoded, pad_ids

SHRINK = 0.03
"""The penalty of ridge regression, as a share of the mean variance of a state's numbers."""
AT_ONCE = 16


def batches(texts: Sequence[Encoded]) -> Iterator[Tensor]:
    """The ids of texts, AT_ONCE in a batch: int64 [B, T] padded with 0."""
    for start in range(0, len(texts), AT_ONCE):
        yield pad_ids([text.ids for text in texts[start : start + AT_ONCE]])


@torch.no_grad()
def fit_folds(
    lower: CausalLower, teacher: Decoder, texts: Sequence[Encoded], report: Callable[[int, int], None]
) -> None:
    """Fit each order's matrix and bias to the teacher's states at the split, by ridge regression towards the
    n-gram's own state. report: told the texts that were read, and of how many."""
    d, orders = lower.shape.dim, range(1, lower.n + 1)
    gram, cross = (torch.zeros(lower.n, d + 1, d + 1, dtype=torch.float64) for _ in range(2))
    for number, ids in enumerate(batches(texts)):
        report(number * AT_ONCE, len(texts))
        states = teacher(ids, upto=lower.depth)
        for order in orders:
            # Tokens with fewer before them are looked up by shorter n-grams.
            keep = (ids > 0) & (torch.arange(ids.shape[1]) >= order)
            rows, columns = keep.nonzero(as_tuple=True)
            ngrams = torch.stack([ids[rows, columns - order + 1 + i] for i in range(order)], dim=1)
            x = F.pad(lower.states(ngrams), (0, 1), value=1.0).double()
            y = states[keep].double()
            gram[order - 1] += x.T @ x
            cross[order - 1] += x.T @ F.pad(y - x[:, :-1], (0, 1))
    for at in range(lower.n):
        count = gram[at, -1, -1]
        if not count:  # all texts are shorter
            continue
        mean = gram[at, -1, :-1] / count
        left = cross[at, -1, :-1] / count
        centred = gram[at, :-1, :-1] - count * torch.outer(mean, mean)
        # The constant keeps equal texts solvable.
        penalty = (SHRINK * centred.diagonal().mean() + 1e-6) * torch.eye(d, dtype=torch.float64)
        change = torch.linalg.solve(centred + penalty, cross[at, :-1, :-1] - count * torch.outer(mean, left))
        lower.fold[at] = torch.eye(d) + change.float()
        lower.shift[at] = (left - mean @ change).float()


@torch.inference_mode()
def measure_causal(
    rows_of: Callable[[Tensor], Tensor],
    upper: UpperDecoder,
    teacher: Decoder,
    texts: Sequence[Encoded],
    n: int,
) -> dict[str, float]:
    """All measures, rounded to four places. Those that the texts are too short for are left out.

    rows_of: ids [B, T] -> rows [B, T, dim], a `CausalLower` or look-ups of n-grams of at most `n` tokens.
    """
    split = len(teacher.layers) - len(upper.layers)
    wrong = spread = kl = ours = theirs = 0.0
    count = 0
    for ids in batches([text for text in texts if len(text) > 1]):
        rows, true = rows_of(ids), teacher(ids, upto=split)
        late = (ids > 0) & (torch.arange(ids.shape[1]) >= n)
        wrong += float((rows - true)[late].square().sum())
        spread += float((true[late] - true[late].mean(0)).square().sum())
        # One text at a time: a batch's scores of all words would take gigabytes.
        for text, mine, full in zip(ids, upper(rows), teacher(ids), strict=True):
            wanted = text[1:][text[1:] > 0] - 1
            got = upper.logits(mine[: len(wanted)])[:, 1:].log_softmax(-1)
            want = teacher.logits(full[: len(wanted)])[:, 1:].log_softmax(-1)
            kl += float((want.exp() * (want - got)).sum())
            ours += float(F.nll_loss(got, wanted, reduction="sum"))
            theirs += float(F.nll_loss(want, wanted, reduction="sum"))
            count += len(wanted)
    if not count:
        return {}
    error = {"split_relative_error": wrong / spread} if spread else {}
    found = {
        **error,
        "kl": kl / count,
        "perplexity_ratio": float(torch.tensor((ours - theirs) / count).exp()),
        "source_perplexity": float(torch.tensor(theirs / count).exp()),
    }
    return {name: round(value, 4) for name, value in found.items()}


def causal_fidelity(
    parts: tuple[CausalLower, UpperDecoder], teacher: Decoder, texts: Mapping[str, Sequence[Encoded]]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The measures over all texts, and by kind, with every n-gram computed."""
    lower, upper = parts

    def measure(some: Sequence[Encoded]) -> dict[str, float]:
        return measure_causal(lower, upper, teacher, some, lower.n)

    by_kind = {kind: measure(some) for kind, some in texts.items()}
    if len(by_kind) == 1:
        return by_kind[next(iter(by_kind))], by_kind
    return measure([t for some in texts.values() for t in some]), by_kind
