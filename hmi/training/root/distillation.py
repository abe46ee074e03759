"""Makes the lower layers of a root local: by ridge regression, then distillation. Finally co-trains
the upper layers on the states that a PLOT will give them.

The recipe is explained in docs/design/0002-locality.md. The functions change only the modules that
they are given; the caller handles progress and cancellation through `StepReport`, and may keep
checkpoints within a phase with a `Keeper`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from hmi.model.network.encoder import Encoder, EncoderLayer, attend_padded
from hmi.model.network.relative import bucket_of
from hmi.model.sources.lower import Cover, InputBias, LocalLower, centre, ngram_windows, shifted
from hmi.model.text.batching import Encoded, pad_ids
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import StepReport
from hmi.training.root.phases import Keeper, ParameterGroup, run_phase

RIDGE_TOKENS = 2048
AnyText = TypeVar("AnyText", bound=Sized)
GROUPS = 8
"""A batch is one of this many groups, into which a random sample of texts is divided by length."""
INNER_WEIGHT = 0.5
"""In co-training, the weight of the mean error after the upper layers but the last. The last one's is 1."""


@dataclass(frozen=True)
class DistilPlan:
    """The steps and learning rates of distillation. The defaults take about 15 CPU-minutes on MiniLM."""

    ridge_texts: int = 600
    ridge_shrink: float = 0.03
    steps: int = 700
    tokens_per_step: int = 512
    lr: float = 2e-4
    lr_bias: float = 5e-4
    upper_steps: int = 700
    upper_lr: float = 1e-4
    joint_steps: int = 0
    joint_tokens: int = 2048
    joint_lr: float = 2e-4
    """The steps of joint training of the lower and the upper layers."""
    joint_lr_bias: float = 3e-4
    seed: int = 0


@dataclass(frozen=True)
class PaddedBatch:
    """Padded ids, types and positions int64 [B, T], and the token mask bool [B, T]."""

    ids: Tensor
    types: Tensor
    mask: Tensor

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.ids.shape[1]).expand_as(self.ids)


def make_batch(texts: Sequence[Encoded]) -> PaddedBatch:
    ids = pad_ids([t.ids for t in texts])
    return PaddedBatch(ids, pad_ids([t.types for t in texts]), ids > 0)


def sample_batches(texts: Sequence[Encoded], tokens: int, rng: random.Random) -> Iterator[PaddedBatch]:
    """Yield batches of `sample_batch` without end."""
    while True:
        yield sample_batch(texts, tokens, rng)


def sample_batch(texts: Sequence[Encoded], tokens: int, rng: random.Random) -> PaddedBatch:
    """A random batch of about `tokens` tokens. Its texts are of similar length, so that there is little
    padding, and are cut to one of three lengths."""
    sep = texts[0].ids[-1]
    limit = rng.choices((48, 96, 224), (0.45, 0.35, 0.2))[0]
    drawn: list[Encoded] = []
    left = GROUPS * tokens
    while left > 0:
        drawn.append(_cut(rng.choice(texts), limit, sep))
        left -= len(drawn[-1])
    return make_batch(one_group(drawn, tokens, rng))


def one_group(texts: Sequence[AnyText], tokens: int, rng: random.Random) -> list[AnyText]:
    """Divide texts by length into groups of about `tokens` tokens, and return one at random. So there is
    little padding, and each token is as likely as before."""
    groups: list[list[AnyText]] = [[]]
    filled = 0
    for text in sorted(texts, key=len):
        if filled >= tokens:
            groups.append([])
            filled = 0
        groups[-1].append(text)
        filled += len(text)
    if len(groups) > 1 and filled < tokens // 2:  # too few are left for a batch of their own
        groups[-2] += groups.pop()
    return rng.choice(groups)


def random_cover(ids: Tensor, n: int, rng: random.Random, generator: torch.Generator) -> Cover | None:
    """Choose n-grams to drop at random, so that back-off is trained too. Half of the batches
    stay complete (None)."""
    if rng.random() < 0.5:
        return None
    held = {n: torch.rand(*ids.shape, generator=generator) < rng.choice((0.3, 0.6, 0.8))}
    held |= {order: torch.rand(*ids.shape, generator=generator) < 0.8 for order in range(n - 1, 1, -1)}
    return Cover(held)


def compute_features(
    lower: LocalLower, bias: InputBias, batch: PaddedBatch, cover: Cover | None = None
) -> Tensor:
    """The upper layers' input [B, T, dim]: aggregated n-gram rows plus position and type bias."""
    rows: Tensor = bias(lower(batch.ids, cover), batch.positions, batch.types)
    return rows


def run_upper(upper: nn.ModuleList, x: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Run the upper layers, without a tenant's module, on a padded batch [B, T, dim]."""
    attend = attend_padded(mask, heads)
    for layer in upper:
        x = layer(x, attend)
    hidden: Tensor = x
    return hidden


def start_local(
    lower: LocalLower, bias: InputBias, teacher: Encoder, texts: Sequence[Encoded], plan: DistilPlan
) -> None:
    """Set slots, W_r and bias in closed form, without training, on about `plan.ridge_texts` texts."""
    batches = sample_batches(texts, RIDGE_TOKENS, random.Random(plan.seed + 7))
    warm = [next(batches) for _ in range(max(2, plan.ridge_texts // 40))]
    init_slots(lower, teacher, warm[0])
    fit_ridge(lower, bias, teacher, warm, plan.ridge_shrink)


@torch.no_grad()
def init_slots(lower: LocalLower, teacher: Encoder, batch: PaddedBatch) -> None:
    """Set each lower layer's two constant slots to the mean key and value of [CLS] and of the last [SEP].

    With relative attention, also set their bias to the mean over the texts' tokens.
    """
    last = batch.mask.sum(1) - 1
    rows = torch.arange(len(last))
    x = teacher.embeddings(batch.ids, batch.positions, batch.types)
    attend = attend_padded(batch.mask, teacher.shape.heads)
    for i in range(lower.depth):
        layer = teacher.layers[i]
        assert isinstance(layer, EncoderLayer)
        _, k, v = layer.project(x)
        lower.slot_keys[i] = torch.stack([k[:, 0].mean(0), k[rows, last].mean(0)])
        lower.slot_values[i] = torch.stack([v[:, 0].mean(0), v[rows, last].mean(0)])
        if lower.slot_bias is not None and layer.relative is not None:
            lower.slot_bias[i] = _slot_shares(batch, len(layer.relative)) @ layer.relative
        x = layer(x, attend)


def _slot_shares(batch: PaddedBatch, buckets: int) -> Tensor:
    """The share of tokens that see their text's [CLS] and last [SEP] in each bucket of
    distance: [2, buckets]."""
    ends = torch.stack([torch.zeros(len(batch.ids), dtype=torch.int64), batch.mask.sum(1) - 1])
    distances = (ends[:, :, None] - batch.positions)[:, batch.mask]
    counts = torch.stack([torch.bincount(bucket_of(d, buckets), minlength=buckets) for d in distances])
    return counts / counts.sum(1, keepdim=True)


@torch.no_grad()
def fit_ridge(
    lower: LocalLower, bias: InputBias, teacher: Encoder, batches: Sequence[PaddedBatch], shrink: float
) -> None:
    """Fit W_r (shrunk towards I/n) and the position and type bias to the teacher, in closed form."""
    d, width = lower.shape.dim, lower.n * lower.shape.dim
    prior = torch.eye(d).repeat(lower.n, 1) / lower.n
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, d, dtype=torch.float64)
    sums = torch.zeros(width + d + 1, dtype=torch.float64)
    for batch in batches:
        x, y = _parts(lower, batch), teacher(batch.ids, batch.mask, batch.types, upto=lower.depth)
        keep = batch.mask.clone()
        keep[:, 0] = False  # the [CLS] state depends on the whole text, which no window sees
        xs = x[keep].double()
        rs = y[keep].double() - xs @ prior.double()
        gram += xs.T @ xs
        cross += xs.T @ rs
        sums += torch.cat([xs.sum(0), rs.sum(0), torch.tensor([float(len(xs))], dtype=torch.float64)])
    n, x_mean, r_mean = sums[-1], sums[:width] / sums[-1], sums[width:-1] / sums[-1]
    gram -= n * torch.outer(x_mean, x_mean)
    cross -= n * torch.outer(x_mean, r_mean)
    penalty = shrink * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    fold = prior + torch.linalg.solve(gram + penalty, cross).float()
    lower.fold.copy_(fold.view(lower.n, d, d))
    fit_bias(lower, bias, teacher, batches)


@torch.no_grad()
def fit_bias(lower: LocalLower, bias: InputBias, teacher: Encoder, batches: Sequence[PaddedBatch]) -> None:
    """Set the position bias to the mean residual around each position, and the bias of type 1 to
    the mean residual that remains in second texts."""
    shape = lower.shape
    total = torch.zeros(shape.positions, shape.dim)
    count = torch.zeros(shape.positions)
    typed, typed_count = torch.zeros(shape.dim), 0
    residuals = []
    for batch in batches:
        r = teacher(batch.ids, batch.mask, batch.types, upto=lower.depth) - lower(batch.ids)
        residuals.append(r)
        first = batch.mask & (batch.types == 0)
        total.index_add_(0, batch.positions[first], r[first])
        count.index_add_(0, batch.positions[first], torch.ones(int(first.sum())))
    bias.position.copy_(_smooth(total, count))
    for batch, r in zip(batches, residuals, strict=True):
        second = batch.types == 1
        typed += (r - bias.position[batch.positions])[second].sum(0)
        typed_count += int(second.sum())
    if typed_count:
        bias.token_type[1] = typed / typed_count


def distil_lower(
    lower: LocalLower,
    bias: InputBias,
    teacher: Encoder,
    texts: Sequence[Encoded],
    plan: DistilPlan,
    report: StepReport,
    *,
    bf16: bool = False,
    keeper: Keeper | None = None,
) -> None:
    """Train lower layers, slots, W_r and bias against the teacher's hidden states at the split (MSE)."""

    def loss_of(step: int) -> Tensor:
        batch, cover = drawn(texts, plan.tokens_per_step, lower.n, (plan.seed, "lower", step))
        with arithmetic(bf16=bf16):
            with torch.no_grad():
                target = teacher(batch.ids, batch.mask, batch.types, upto=lower.depth)
            got = compute_features(lower, bias, batch, cover)
        return mean_square((got.float() - target.float())[batch.mask])

    groups = lower_groups(lower, bias, plan.lr, plan.lr_bias)
    run_phase(groups, plan.steps, loss_of, report, clip=5.0, keeper=keeper)


def lower_groups(lower: LocalLower, bias: InputBias, lr: float, lr_bias: float) -> list[ParameterGroup]:
    """The trained parameters below the split. The tables of words and types stay the source's: the words' has
    12 M of the 17 M lower parameters, and the shipped delta must stay small."""
    body = {
        f"lower.{name}": p
        for name, p in lower.named_parameters()
        if name not in ("embeddings.word.weight", "embeddings.token_type.weight")
    }
    return [
        ParameterGroup(body, lr),
        ParameterGroup({f"bias.{name}": p for name, p in bias.named_parameters()}, lr_bias),
    ]


def train_upper(
    lower: LocalLower,
    bias: InputBias,
    upper: nn.ModuleList,
    teacher: Encoder,
    texts: Sequence[Encoded],
    plan: DistilPlan,
    report: StepReport,
    *,
    bf16: bool = False,
    keeper: Keeper | None = None,
) -> None:
    """Train the upper layers on frozen PLOT states against the teacher's states (MSE, relative to their
    spread): those after the last layer, with a further term for [CLS], and with less weight those after
    each layer before it."""

    def loss_of(step: int) -> Tensor:
        batch, cover = drawn(texts, plan.tokens_per_step * 2, lower.n, (plan.seed, "upper", step))
        mask, heads = batch.mask, teacher.shape.heads
        with arithmetic(bf16=bf16):
            with torch.no_grad():
                true = teacher(batch.ids, mask, batch.types, upto=lower.depth)
                want = upper_states(teacher.layers[lower.depth :], true, mask, heads)
                x = compute_features(lower, bias, batch, cover).float()
            got = upper_states(upper, x, mask, heads)
        return upper_loss(got, want, mask)

    group = ParameterGroup(dict(upper.named_parameters()), plan.upper_lr)
    run_phase([group], plan.upper_steps, loss_of, report, clip=1.0, keeper=keeper)


def upper_loss(got: Sequence[Tensor], want: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The error after the last layer, with a further term for [CLS], plus, with the weight INNER_WEIGHT, the
    mean error after the layers before it. Each is relative to the spread of the wanted states.

    got and want: the states after each upper layer, fp32 [B, T, dim].
    """
    wrong, spread = got[-1] - want[-1], spread_of(want[-1][mask])
    loss = (mean_square(wrong[mask]) + mean_square(wrong[:, 0])) / spread
    inner = [mean_square((g - w)[mask]) / spread_of(w[mask]) for g, w in zip(got[:-1], want, strict=False)]
    return loss + INNER_WEIGHT / max(1, len(inner)) * sum(inner, torch.zeros(()))


def upper_states(layers: Iterable[nn.Module], x: Tensor, mask: Tensor, heads: int) -> list[Tensor]:
    """The states after each of the layers, fp32 [B, T, dim]."""
    attend = attend_padded(mask, heads)
    states = []
    for layer in layers:
        x = layer(x, attend)
        states.append(x.float())
    return states


def drawn(
    texts: Sequence[Encoded], tokens: int, n: int, seed: tuple[int, str, int]
) -> tuple[PaddedBatch, Cover | None]:
    """A step's batch and the n-grams to drop. They depend on `seed` alone, so a resumed phase needs no
    random states."""
    rng = random.Random(repr(seed))
    batch = sample_batch(texts, tokens, rng)
    return batch, random_cover(batch.ids, n, rng, torch.Generator().manual_seed(rng.getrandbits(48)))


def mean_square(rows: Tensor) -> Tensor:
    """The mean squared length of rows [m, dim]."""
    mean: Tensor = (rows**2).sum(-1).mean()
    return mean


def spread_of(rows: Tensor) -> Tensor:
    """The variance of rows [m, dim], summed over their components."""
    return rows.var(0).sum()


def _cut(text: Encoded, limit: int, sep: int) -> Encoded:
    if len(text) <= limit:
        return text
    return Encoded([*text.ids[: limit - 1], sep], text.types[:limit], text.words[:limit], True)


def _parts(lower: LocalLower, batch: PaddedBatch) -> Tensor:
    """The rows of the n windows that contain each token, concatenated by role: [B, T, n·dim]."""
    n = lower.n
    h = lower.hidden(ngram_windows(batch.ids, n).reshape(-1, n)).view(*batch.ids.shape, n, -1)
    h = h * batch.mask[..., None, None]
    return torch.cat([shifted(h[:, :, role], role - centre(n)) for role in range(n)], dim=-1)


def _smooth(total: Tensor, count: Tensor) -> Tensor:
    """The mean over ±(2 + i/8) positions around position i. Position 0 ([CLS]) stands alone;
    positions beyond the data get the last mean."""
    sums, counts = total.cumsum(0), count.cumsum(0)
    out = torch.zeros_like(total)
    out[0] = total[0] / count[0].clamp(min=1)
    for i in range(1, len(total)):
        low, high = max(1, i - 2 - i // 8), min(len(total) - 1, i + 2 + i // 8)
        seen = counts[high] - counts[low - 1]
        out[i] = (sums[high] - sums[low - 1]) / seen if seen > 0 else out[i - 1]
    return out
