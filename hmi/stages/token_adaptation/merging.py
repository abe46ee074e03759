"""Merging of similar rows of packed texts (ToMe, ICLR '23, as OTAS uses it), on the rows that enter a layer.

A run is a stretch of neighbouring rows that may be merged with each other: those of one segment of a text.
Special tokens are in no run, so they stay. docs/design/0013-token-adaptation.md says where this differs from
the papers.
"""

from __future__ import annotations

import numpy as np
import torch
from hmi_kernels.rows.merging import merge
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
START, COUNT, LOSE = range(3)
"""The columns of runs: the first row, the number of rows, and the number of rows to lose."""


def merged(x: Tensor, size: Tensor | None, runs: Ints) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the rows of runs.

    x fp32 [rows, dim] and size fp32 [rows] (None: one each): as in `Rows`. runs int64 [runs, 3]: first row,
    number of rows and the number of rows to lose, at most half; ascending, without overlap. The rows of a run
    are alternately in A and in B. Of the rows of A, those that resemble a row of B most (by their cosine)
    become a part of its mean, weighed by size. Ties go to the earlier row.

    Returns the rows that are left, their sizes, and int64 [rows]: the row that stands for each former one.
    On a device nothing is waited for.
    """
    if x.is_cuda:
        return merged_in_torch(x, size, runs)
    x = x.contiguous()
    rows, left = len(x), len(x) - int(runs[:, LOSE].sum())
    sizes = np.ones(rows, np.float32) if size is None else size.numpy()
    out, out_size = torch.empty(left, x.shape[1]), np.empty(left, np.float32)
    into = np.empty(rows, np.int64)
    merge(x.numpy(), sizes, runs, into, out.numpy(), out_size)
    return out, torch.from_numpy(out_size), torch.from_numpy(into)


def merged_in_torch(x: Tensor, size: Tensor | None, runs: Ints) -> tuple[Tensor, Tensor, Tensor]:
    """`merged` by torch operations on the rows' device, all runs at once, padded to the longest.

    How many rows are left is known on the host, so nothing waits for the device.
    """
    lost, rows = int(runs[:, LOSE].sum()), len(x)
    weight = x.new_ones(rows) if size is None else size
    target = torch.arange(rows + 1, device=x.device)  # the last one takes what is not to be written
    if lost == 0:
        return x, weight, target[:rows]
    runs = runs[runs[:, LOSE] > 0]
    start, count, lose = (torch.from_numpy(column.copy()).to(x.device)[:, None] for column in runs.T)
    place = torch.arange((int(runs[:, COUNT].max()) + 1) // 2, device=x.device)
    a, b = start + 2 * place, start + 2 * place + 1
    unit = torch.nn.functional.normalize(x, dim=-1)
    like = unit[a.clamp(max=rows - 1)] @ unit[b.clamp(max=rows - 1)].transpose(1, 2)
    like = like.masked_fill((b >= start + count)[:, None], -torch.inf)
    score, best = like.max(-1)
    score = score.masked_fill(a >= start + count, -torch.inf)
    goes = score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1) < lose
    gone = torch.where(goes, a, rows).flatten()
    target[gone] = b.gather(1, best).flatten()
    stays = torch.ones_like(target).index_fill_(0, gone, 0)
    into = (stays.cumsum(0) - 1)[target[:rows]]
    total = x.new_zeros(rows - lost).index_add_(0, into, weight)
    out = x.new_zeros(rows - lost, x.shape[1]).index_add_(0, into, x * weight[:, None])
    return out / total[:, None], total, into
