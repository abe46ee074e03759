"""How much worse a language model predicts held-out text when its lower layers are looked up in a PLOT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from bench.harness.report import Figure
from hmi.errors import Conflict
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import GenerativeRoot
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.source import find_source
from hmi.model.text.batching import Encoded
from hmi.training.root.causal import measure_causal
from hmi.training.writing.lookup import rows_from_plot
from plot_store import Reader

TEXTS = 100
"""Held-out texts that are read by the source and by the root."""


def perplexities(
    root: GenerativeRoot, reader: Reader, texts: Sequence[Encoded], suffix: str
) -> Iterator[Figure]:
    """Yield the perplexity over the source's, with every n-gram computed, and with those of a PLOT.

    root: loaded with its lower layers. Raises UnsupportedModel (its source is gone), Conflict (it changed).
    """
    assert isinstance(root.lower, CausalLower)
    about = root.info.source
    source = find_source(about.get("folder", about["name"]))
    if source.sha256 != about["sha256"]:
        raise Conflict(f"{source.name} has other weights than root {root.info.name} was made from")
    teacher = load_language_model(source).decoder
    some = texts[:TEXTS]
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "computed": root.lower,
        "looked_up": rows_from_plot(reader, root.upper.first),
    }
    for name, rows_of in kinds.items():
        found = measure_causal(rows_of, root.upper, teacher, some, root.info.n)
        peer = f"the source's: {found['source_perplexity']:.4g}"
        yield Figure(
            f"perplexity_ratio_{name}_{suffix}", found["perplexity_ratio"], "×", runs=len(some), peer=peer
        )
        yield Figure(f"kl_{name}_{suffix}", found["kl"], "nats", runs=len(some))
