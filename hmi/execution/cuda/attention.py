"""Attention inside each text of a packed batch, on a device.

`Ragged` needs no padding. It works in bfloat16 on a GPU, for roots without relative positions. For all
others, `BucketedAttention` runs texts of similar length together, each padded to the longest text of its
bucket. The host computes the places of all rows and uploads them with the batch, so that it never waits for
the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.model.network.encoder import Attend
from hmi.model.network.shape import EncoderShape

MOST_HEAD_DIM = 256
"""The largest heads of `varlen_attn`, whose sizes are multiples of 8."""
log = logging.getLogger("hmi.execution")
STEPS = ((64, 8), (256, 32))
"""(longest text, step): a text belongs to the bucket of the next multiple of the step."""
LAST_STEP = 64


def varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, q_begins: Tensor, k_begins: Tensor, q_longest: int, k_longest: int
) -> Tensor:
    """Call torch's function of this name. Its import loads torch's compiler, which takes seconds; a server
    without a GPU never calls it. Raises ImportError before torch 2.10."""
    from torch.nn.attention import varlen

    y = varlen.varlen_attn(q, k, v, q_begins, k_begins, q_longest, k_longest)
    assert isinstance(y, Tensor)
    return y


class Attention(Protocol):
    """Attention over the rows of one batch: gives the functions that compute it, for all rows or for the
    texts' first rows."""

    def rows(self, heads: int, size: Tensor | None = None) -> Attend:
        """Return a function from q, k and v, [rows, dim] each, to the attention of every row, [rows, dim].

        size: float32 [rows], the tokens that each row stands for (`Rows.size`); None: one each.
        """
        ...

    def firsts(self, heads: int, size: Tensor | None = None) -> Attend:
        """Return a function from q [texts, dim], of each text's first row, and k and v [rows, dim], to
        [texts, dim].

        size: as of `rows`.
        """
        ...


def ragged_on(like: Tensor, shape: EncoderShape) -> bool:
    """Return whether `Ragged` can serve a root of this shape, in the dtype and on the device of `like`.

    Runs it on one row to find out.
    """
    size = shape.dim // shape.heads
    fits = not shape.buckets and size % 8 == 0 and size <= MOST_HEAD_DIM
    if not (like.is_cuda and like.dtype == torch.bfloat16 and fits):
        return False
    row, begins = like.new_zeros(1, 1, size), torch.tensor([0, 1], dtype=torch.int32, device=like.device)
    try:
        varlen_attn(row, row, row, begins, begins, 1, 1)
    except (ImportError, RuntimeError, TypeError) as error:  # too old a card or torch, or a build without it
        log.info("texts are padded for attention: %s", str(error).partition("\n")[0])
        return False
    return True


class Ragged:
    """An `Attention` without padding, by torch's flash attention over texts of any lengths."""

    def __init__(self, offsets: Sequence[int], upload: ArrayUpload, texts: int = 0, longest: int = 0) -> None:
        """offsets: the first row of each text, and the number of rows. texts, longest: at least so many
        texts, and at least so many rows in the longest, for batches that share a CUDA graph; the texts that
        the batch lacks are empty."""
        texts = max(texts, len(offsets) - 1)
        self._longest = max(longest, max((b - a for a, b in pairwise(offsets)), default=0))
        begins = [*offsets, *[offsets[-1]] * (texts + 1 - len(offsets))]
        self._begins, self._each = _int32(begins, upload), _int32(range(texts + 1), upload)

    def rows(self, heads: int, size: Tensor | None = None) -> Attend:
        """See `Attention.rows`."""
        return self._attend(heads, self._begins, self._longest, size)

    def firsts(self, heads: int, size: Tensor | None = None) -> Attend:
        """See `Attention.firsts`."""
        return self._attend(heads, self._each, 1, size)

    def _attend(self, heads: int, begins: Callable[[], Tensor], longest: int, size: Tensor | None) -> Attend:
        assert size is None, "a merged row counts as several in buckets only"

        def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
            assert relative is None
            qs, ks, vs = (z.unflatten(-1, (heads, -1)) for z in (q, k, v))
            return varlen_attn(qs, ks, vs, begins(), self._begins(), longest, self._longest).flatten(-2)

        return attend


def _int32(numbers: Sequence[int], upload: ArrayUpload) -> Callable[[], Tensor]:
    """Upload numbers as int32, two in each int64 of the upload; return a function that gives them on the
    device."""
    padded = np.zeros(len(numbers) + len(numbers) % 2, np.int32)
    padded[: len(numbers)] = numbers
    there = upload.add(padded.view(np.int64))
    return lambda: there().view(torch.int32)[: len(numbers)]


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
class BucketedAttention:
    """An `Attention` that runs texts of similar length together."""

    buckets: Sequence[Bucket]
    in_order: bool
    """True: there is one bucket, and its rows are the batch's rows, in their order."""
    by_row: Callable[[], Tensor]
    """int64 [rows]: the position of each row in the concatenated buckets."""
    by_text: Callable[[], Tensor]
    """int64 [texts]: the position of each text in the concatenated buckets."""

    @classmethod
    def of(cls, offsets: Sequence[int], upload: ArrayUpload) -> BucketedAttention:
        starts = np.asarray(offsets, np.int64)
        lengths = np.diff(starts)
        groups = _grouped(lengths)
        buckets = [_bucket(starts[:-1], lengths, texts, upload) for texts in groups]
        in_order = len(groups) == 1 and buckets[0].even
        return cls(buckets, in_order, *_inverses(starts, lengths, groups, upload))

    @classmethod
    def padded(
        cls, offsets: Sequence[int], upload: ArrayUpload, shape: tuple[int, int], rows: int
    ) -> BucketedAttention:
        """Put all texts into one bucket of the shape [texts, longest], for batches that share a CUDA graph.

        Texts that the batch lacks attend to its first row alone. Rows that it lacks, up to `rows`, get the
        result of its first row. Neither changes a result of the batch.
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
        """See `Attention.rows`."""

        def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
            ys = []
            for bucket in self.buckets:
                qs, ks, vs = (self._padded(bucket, z, heads) for z in (q, k, v))
                added = _added(bucket, bucket.shape[1], relative, size, q.dtype)
                ys.append(_mixed(qs, ks, vs, added))
            return ys[0] if self.in_order else torch.cat(ys).index_select(0, self.by_row())

        return attend

    def firsts(self, heads: int, size: Tensor | None = None) -> Attend:
        """See `Attention.firsts`."""

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


def _bucket(starts: Ints, lengths: Ints, texts: Ints, upload: ArrayUpload) -> Bucket:
    mine = lengths[texts]
    longest = int(mine.max())
    rows = starts[texts][:, None] + np.minimum(np.arange(longest), mine[:, None] - 1)
    even = bool((mine == longest).all())
    return Bucket(upload.add(texts), upload.add(rows), upload.add(mine), (len(texts), longest), even)


def _inverses(
    starts: Ints, lengths: Ints, groups: list[Ints], upload: ArrayUpload
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
