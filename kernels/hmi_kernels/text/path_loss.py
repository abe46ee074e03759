"""A numba body for training a tagger: the loss of whole paths through texts, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled


@compiled
def path_loss(scores: Any, starts: Any, tags: Any, moves: Any, of_scores: Any, of_moves: Any) -> Any:
    """Return the sum over texts of minus the log-probability of the right path; fill in its gradient.

    scores float32 [words, labels]: text t has the words starts[t] to starts[t + 1] - 1, at least one. tags
    int64 [words]: the right path. moves float32 [labels + 1, labels]: row i has the scores of the labels
    after label i, the last row those of a first word's label. of_scores and of_moves: float32, their
    gradients, in the same shapes.

    The forward-backward algorithm, with sums rescaled at each word so that they neither vanish nor overflow.
    """
    count, labels = scores.shape
    steps = np.exp(moves)
    turned = np.ascontiguousarray(steps[:labels].T)
    weight, reached = np.empty((count, labels), np.float32), np.empty((count, labels), np.float32)
    total = np.empty(count, np.float32)
    after, here = np.empty(labels, np.float32), np.empty(labels, np.float32)
    pairs = np.zeros((labels, labels), np.float32)
    loss = 0.0
    of_moves[:] = 0.0
    for t in range(starts.size - 1):
        first, end = starts[t], starts[t + 1]
        for w in range(first, end):
            top = scores[w].max()
            loss += top - scores[w, tags[w]]
            for j in range(labels):
                weight[w, j] = np.exp(scores[w, j] - top)
                reached[w, j] = steps[labels, j] if w == first else 0.0
            if w > first:
                loss -= moves[tags[w - 1], tags[w]]
                for i in range(labels):
                    for j in range(labels):
                        reached[w, j] += reached[w - 1, i] * steps[i, j]
            else:
                loss -= moves[labels, tags[w]]
            whole = np.float32(0.0)
            for j in range(labels):
                reached[w, j] *= weight[w, j]
                whole += reached[w, j]
            for j in range(labels):
                reached[w, j] /= whole
            total[w] = whole
            loss += np.log(whole)
        after[:] = 1.0
        for w in range(end - 1, first - 1, -1):
            for j in range(labels):
                of_scores[w, j] = reached[w, j] * after[j]
                here[j] = weight[w, j] * after[j] / total[w]
            of_scores[w, tags[w]] -= 1.0
            if w > first:
                after[:] = 0.0
                for i in range(labels):
                    for j in range(labels):
                        pairs[i, j] += reached[w - 1, i] * here[j]
                for j in range(labels):  # by columns, so that the inner loop is many independent sums
                    for i in range(labels):
                        after[i] += turned[j, i] * here[j]
                of_moves[tags[w - 1], tags[w]] -= 1.0
            else:
                for j in range(labels):
                    of_moves[labels, j] += of_scores[w, j]
    for i in range(labels):
        for j in range(labels):
            of_moves[i, j] += pairs[i, j] * steps[i, j]
    return loss
