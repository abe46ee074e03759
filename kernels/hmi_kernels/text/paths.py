"""numba bodies: the best path through a text's tags, and the probability of each tag over all paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled


@compiled
def viterbi(scores: Any, moves: Any, came: Any, path: Any) -> Any:
    """Fill path int64 [words] with the labels of the greatest sum; of equal ones the lowest label.

    scores float32 [words, labels], at least one word; moves float32 [labels + 1, labels]: what a label gets
    after another, the last row at the beginning. came int32 [words, labels] is room to work in.
    """
    words, labels = scores.shape
    reached, best = np.empty(labels, np.float32), np.empty(labels, np.float32)
    for j in range(labels):
        reached[j] = scores[0, j] + moves[labels, j]
    for w in range(1, words):
        for j in range(labels):
            best[j] = reached[0] + moves[0, j]
            came[w, j] = 0
        for i in range(1, labels):
            for j in range(labels):
                here = reached[i] + moves[i, j]
                if here > best[j]:
                    best[j] = here
                    came[w, j] = i
        for j in range(labels):
            reached[j] = best[j] + scores[w, j]
    path[words - 1] = np.argmax(reached)
    for w in range(words - 1, 0, -1):
        path[w - 1] = came[w, path[w]]


@compiled
def forward_backward(words: Any, start: Any, steps: Any, out: Any) -> Any:
    """Fill out float64 [words, labels] with the probability of each label at each word over all paths.

    words float64 [words, labels], start [labels], steps [labels, labels]: weights, not their logarithms.
    Scaled at each word, so that long texts neither vanish nor overflow.
    """
    count, labels = words.shape
    now, after, turned = np.empty(labels), np.ones(labels), np.ascontiguousarray(steps.T)
    for w in range(count):
        for j in range(labels):
            now[j] = start[j] if w == 0 else 0.0
        if w > 0:
            for i in range(labels):
                for j in range(labels):
                    now[j] += out[w - 1, i] * steps[i, j]
        total = 0.0
        for j in range(labels):
            now[j] *= words[w, j]
            total += now[j]
        for j in range(labels):
            out[w, j] = now[j] / total
    for w in range(count - 1, -1, -1):
        if w < count - 1:
            total = 0.0
            for j in range(labels):
                now[j] = words[w + 1, j] * after[j]
            after[:] = 0.0
            for j in range(labels):  # by columns: the inner loop is then many sums at once, not one
                for i in range(labels):
                    after[i] += turned[j, i] * now[j]
            for i in range(labels):
                total += after[i]
            for i in range(labels):
                after[i] /= total
        total = 0.0
        for j in range(labels):
            now[j] = out[w, j] * after[j]
            total += now[j]
        for j in range(labels):
            out[w, j] = now[j] / total
