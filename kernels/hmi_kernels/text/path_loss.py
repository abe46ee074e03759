"""numba bodies for training a tagger: the loss of whole paths through texts, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, inlined


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
    total, pairs = np.empty(count, np.float32), np.zeros((labels, labels), np.float32)
    loss = 0.0
    of_moves[:] = 0.0
    for t in range(starts.size - 1):
        first, end = starts[t], starts[t + 1]
        for w in range(first, end):
            before = labels if w == first else tags[w - 1]
            loss += _forward(scores, steps, w, w == first, weight, reached, total)
            loss -= scores[w, tags[w]] + moves[before, tags[w]]
            of_moves[before, tags[w]] -= 1.0
        _backward(turned, first, end, weight, reached, total, of_scores, pairs)
        for j in range(labels):
            of_moves[labels, j] += of_scores[first, j]
        for w in range(first, end):
            of_scores[w, tags[w]] -= 1.0
    for i in range(labels):
        for j in range(labels):
            of_moves[i, j] += pairs[i, j] * steps[i, j]
    return loss


@inlined
def _forward(scores: Any, steps: Any, w: Any, first: Any, weight: Any, reached: Any, total: Any) -> Any:
    """Fill row w of `weight`, exp(scores) without their greatest one, and of `reached`, the shares of the
    paths up to word w that end in each label. Returns the logarithm of the sum that was divided by."""
    labels = scores.shape[1]
    top = scores[w].max()
    for j in range(labels):
        weight[w, j] = np.exp(scores[w, j] - top)
        reached[w, j] = steps[labels, j] if first else 0.0
    if not first:
        for i in range(labels):
            for j in range(labels):
                reached[w, j] += reached[w - 1, i] * steps[i, j]
    whole = np.float32(0.0)
    for j in range(labels):
        reached[w, j] *= weight[w, j]
        whole += reached[w, j]
    for j in range(labels):
        reached[w, j] /= whole
    total[w] = whole
    return top + np.log(whole)


@inlined
def _backward(
    turned: Any, first: Any, end: Any, weight: Any, reached: Any, total: Any, out: Any, pairs: Any
) -> Any:
    """Fill out with the probability of each label at each word of a text, over all paths, and add to pairs
    [labels, labels] that of each two neighbouring labels, divided by its weight of the step.

    turned: the weights of steps, transposed.
    """
    labels = weight.shape[1]
    after, here = np.ones(labels, np.float32), np.empty(labels, np.float32)
    for w in range(end - 1, first - 1, -1):
        for j in range(labels):
            out[w, j] = reached[w, j] * after[j]
            here[j] = weight[w, j] * after[j] / total[w]
        if w > first:
            after[:] = 0.0
            for i in range(labels):
                for j in range(labels):
                    pairs[i, j] += reached[w - 1, i] * here[j]
            for j in range(labels):  # by columns, so that the inner loop is many independent sums
                for i in range(labels):
                    after[i] += turned[j, i] * here[j]
