"""The memory that tuning a teacher takes at its peak, by the shape of its source.

Most of it holds the weights that are tuned. `hmi.model.text.batching.STEP_TOKENS` bounds the activations of a
step. The constants were measured (docs/operations/capacity.md).
"""

from __future__ import annotations

from hmi.model.network.shape import EncoderShape
from hmi.model.text.batching import STEP_TOKENS
from hmi.training.second.teachers import KEPT_BYTES, TUNED

PROCESS_BYTES = 640 << 20
"""The libraries, the root, the rows, the PLOT's pages, and what the allocator keeps."""
FLOAT = 4
"""Bytes of a number in fp32."""
COPIES = 5
"""Numbers for each tuned weight: itself, its gradient, the optimiser's two moments, the best epoch's copy."""
ACTIVATIONS, FFN_ACTIVATIONS = 16, 5
"""Numbers that a step holds for each token and layer, per number of a state and of the feed-forward layer."""


def teacher_bytes(shape: EncoderShape) -> int:
    """The most bytes of a process that tunes a teacher from a source of this shape."""
    layer = 4 * shape.dim**2 + 2 * shape.dim * shape.ffn
    embeddings = (shape.vocab + shape.positions) * shape.dim
    tuned_layers = min(TUNED, shape.layers)
    deep = shape.layers > TUNED
    tuned = tuned_layers * layer + (0 if deep else embeddings)
    frozen = (shape.layers - tuned_layers) * layer + (embeddings if deep else 0)
    kept = KEPT_BYTES + KEPT_BYTES // 2 if deep else 0
    token = tuned_layers * (ACTIVATIONS * shape.dim + FFN_ACTIVATIONS * shape.ffn)
    return PROCESS_BYTES + FLOAT * (COPIES * tuned + frozen + STEP_TOKENS * token) + kept
