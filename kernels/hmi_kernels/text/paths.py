"""numba bodies for tagging: the best path through a text, and the probability of each tag over all paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled


@compiled
def viterbi(scores: Any, moves: Any, came: Any, path: Any) -> Any:
    """Fill path int64 [words] with the labels that have the greatest sum; ties go to the lowest label.

    scores float32 [words, labels], with at least one word. moves float32 [labels + 1, labels]: row i has
    the scores of the labels after label i, the last row those of the first word's label. came int32 [words,
    labels]: scratch memory.
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

    words float64 [words, labels], start [labels] and steps [labels, labels] are weights, not logarithms.
    Sums are rescaled at each word, so that they neither vanish nor overflow in long texts.
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
            for j in range(labels):  # by columns, so that the inner loop is many independent sums
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
