"""Attention inside each text of a packed batch: texts of similar length run together.

Only attention sees padding, at most to the longest text of a bucket. The host computes where each row stands,
and uploads it, so that nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.execution.cuda.upload import Ints, Upload
from hmi.model.encoder import Attend

STEPS = ((64, 8), (256, 32))
"""(longest text, step): a text belongs to the bucket of the next multiple of the step."""
LAST_STEP = 64


@dataclass(frozen=True)
class Bucket:
    """Texts of similar length."""

    texts: Callable[[], Tensor]
    """int64 [texts]: their indexes in the batch."""
    rows: Callable[[], Tensor]
    """int64 [texts, longest]: the rows of each; a shorter text's last row is repeated."""
    lengths: Callable[[], Tensor]
    """int64 [texts]"""
    shape: tuple[int, int]
    """Texts, longest."""
    even: bool
    """All are of equal length."""


@dataclass(frozen=True)
class Buckets:
    """A batch's texts by length."""

    buckets: Sequence[Bucket]
    in_order: bool
    """True: there is one bucket, and its rows are the batch's rows, in their order."""
    by_row: Callable[[], Tensor]
    """int64 [rows]: the position of each row in the concatenated buckets."""
    by_text: Callable[[], Tensor]
    """int64 [texts]: the same of each text."""

    @classmethod
    def of(cls, offsets: Sequence[int], upload: Upload) -> Buckets:
        starts = np.asarray(offsets, np.int64)
        lengths = np.diff(starts)
        groups = _grouped(lengths)
        buckets = [_bucket(starts[:-1], lengths, texts, upload) for texts in groups]
        in_order = len(groups) == 1 and buckets[0].even
        return cls(buckets, in_order, *_inverses(starts, lengths, groups, upload))

    @classmethod
    def padded(cls, offsets: Sequence[int], upload: Upload, shape: tuple[int, int], rows: int) -> Buckets:
        """All texts in one bucket of a given shape, [texts, longest], and a given number of rows.

        Texts beyond the batch's see the first row alone. Rows beyond the batch's get what its first row gets.
        No row of the batch sees any of them.
        """
        texts, longest = shape
        starts = np.asarray(offsets, np.int64)
        lengths = np.diff(starts)
        at, many = np.zeros(shape, np.int64), np.ones(texts, np.int64)
        at[: len(lengths)] = starts[:-1, None] + np.minimum(np.arange(longest), lengths[:, None] - 1)
        many[: len(lengths)] = lengths
        by_row = np.zeros(rows, np.int64)
        firsts = np.arange(len(lengths)) * longest - starts[:-1]
        by_row[: starts[-1]] = np.arange(starts[-1]) + firsts.repeat(lengths)
        every = np.arange(texts)
        bucket = Bucket(upload.add(every), upload.add(at), upload.add(many), shape, even=False)
        return cls([bucket], False, upload.add(by_row), upload.add(every))

    def rows(self, heads: int, size: Tensor | None = None) -> Attend:
        """Attention of every row, [rows, dim]. size: see `Rows.size`."""

        def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
            ys = []
            for bucket in self.buckets:
                qs, ks, vs = (self._padded(bucket, z, heads) for z in (q, k, v))
                added = _added(bucket, bucket.shape[1], relative, size, q.dtype)
                ys.append(_mixed(qs, ks, vs, added))
            return ys[0] if self.in_order else torch.cat(ys).index_select(0, self.by_row())

        return attend

    def firsts(self, heads: int, size: Tensor | None = None) -> Attend:
        """Attention of each text's first row, queries [texts, dim]."""

        def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
            ys = []
            for bucket in self.buckets:
                qs = q.index_select(0, bucket.texts()).unflatten(-1, (heads, -1)).unsqueeze(2)
                ks, vs = (self._padded(bucket, z, heads) for z in (k, v))
                ys.append(_mixed(qs, ks, vs, _added(bucket, 1, relative, size, q.dtype)))
            return torch.cat(ys).index_select(0, self.by_text())

        return attend

    def _padded(self, bucket: Bucket, x: Tensor, heads: int) -> Tensor:
        """[rows, dim] -> [texts, heads, longest, head_dim]."""
        mine = x if self.in_order else x.index_select(0, bucket.rows().view(-1))
        padded: Tensor = mine.unflatten(-1, (heads, -1)).unflatten(0, bucket.shape).transpose(1, 2)
        return padded


def _grouped(lengths: Ints) -> list[Ints]:
    """The texts of each bucket, shortest bucket first."""
    keys = np.full_like(lengths, LAST_STEP)
    for longest, step in reversed(STEPS):
        keys[lengths <= longest] = step
    keys = -(-lengths // keys) * keys
    return [np.flatnonzero(keys == key) for key in np.unique(keys)]


def _bucket(starts: Ints, lengths: Ints, texts: Ints, upload: Upload) -> Bucket:
    mine = lengths[texts]
    longest = int(mine.max())
    rows = starts[texts][:, None] + np.minimum(np.arange(longest), mine[:, None] - 1)
    even = bool((mine == longest).all())
    return Bucket(upload.add(texts), upload.add(rows), upload.add(mine), (len(texts), longest), even)


def _inverses(
    starts: Ints, lengths: Ints, groups: list[Ints], upload: Upload
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The position of each row and each text in the concatenated buckets."""
    by_row, by_text = np.empty(int(starts[-1]), np.int64), np.empty(len(lengths), np.int64)
    row = text = 0
    for texts in groups:
        longest = int(lengths[texts].max())
        by_text[texts] = text + np.arange(len(texts))
        for i, t in enumerate(texts.tolist()):
            first = row + i * longest
            by_row[starts[t] : starts[t + 1]] = np.arange(first, first + lengths[t])
        row, text = row + len(texts) * longest, text + len(texts)
    return upload.add(by_row), upload.add(by_text)


def _added(
    bucket: Bucket, queries: int, relative: Tensor | None, size: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """What is added to the scores, [texts or 1, heads or 1, queries or 1, longest]; None: nothing."""
    added, longest = None, bucket.shape[1]
    if not bucket.even:
        keys = torch.arange(longest, device=bucket.lengths().device)
        valid = keys < bucket.lengths()[:, None]
        added = torch.zeros(valid.shape, dtype=dtype, device=valid.device).masked_fill_(~valid, -torch.inf)
        added = added[:, None, None]
    if relative is not None:
        half = (relative.shape[1] + 1) // 2
        rows = relative[:, half - longest : half + longest - 1].unfold(1, longest, 1)
        bias = rows[:, longest - queries :].flip(1)[None]
        added = bias if added is None else added + bias
    if size is not None:
        logs = size.log().to(dtype).index_select(0, bucket.rows().view(-1)).view(bucket.shape)[:, None, None]
        added = logs if added is None else added + logs
    return added


def _mixed(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> Tensor:
    """[texts, heads, queries, head_dim] -> [texts · queries, dim]."""
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return y.transpose(1, 2).flatten(-2).flatten(0, 1)
