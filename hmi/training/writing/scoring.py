"""How good what was written is, beside what was to be written.

Sources: ROUGE-L as Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), section 3, with
words in lower case and as much weight on precision as on recall.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_WORDS = re.compile(r"\w+")


def perplexity(losses: Tensor) -> float:
    """exp of the mean loss a token. losses [texts, 2]: sums in nats, and the numbers of tokens."""
    total, count = losses.double().sum(0).tolist()
    return math.exp(min(total / max(count, 1), 700.0))


def score_written(golds: Sequence[str], got: Sequence[str]) -> dict[str, Any]:
    """The share of answers that are right to the letter, and the mean ROUGE-L. White space around answers
    does not count."""
    same = sum(gold.strip() == text.strip() for gold, text in zip(golds, got, strict=True))
    alike = sum(rouge_l(gold, text) for gold, text in zip(golds, got, strict=True))
    count = max(1, len(golds))
    return {"exact_match": round(same / count, 4), "rouge_l": round(alike / count, 4), "answers": len(golds)}


def rouge_l(gold: str, got: str) -> float:
    """F1 of the longest common subsequence of words; 1 if both have none."""
    wanted, found = (_WORDS.findall(text.lower()) for text in (gold, got))
    if not wanted or not found:
        return float(wanted == found)
    lengths = [0] * (len(found) + 1)  # of the longest one in the words so far, and the first i of `found`
    for word in wanted:
        before = 0
        for i, other in enumerate(found, 1):
            here = before + 1 if word == other else max(lengths[i], lengths[i - 1])
            before, lengths[i] = lengths[i], here
    return 2 * lengths[-1] / (len(wanted) + len(found))
