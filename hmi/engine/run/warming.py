"""Compiles what answers need, once in a process, before its first batch."""

from __future__ import annotations

import numpy as np
import torch

from hmi.model.tags.tagging import best_path, marginals
from hmi.model.tenant.heads import Head
from hmi.model.text.batching import Encoded
from hmi.model.text.lexical import word_bags


def compile_answers() -> None:
    """Compile the functions that answers need, before a batch waits for them."""
    word_bags(["word"], Encoded([1], [0], [0]), 1)
    scores, moves = np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32)
    best_path(scores, moves)
    marginals(scores, moves)
    row = torch.zeros(1, 16)
    Head(32, 2).of_packed(row, row, [0, 1])
