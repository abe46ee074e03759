"""Measures what a form costs: the time of a token with a form, over the time of a token without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.harness.report import Figure, in_turn, median_ratio
from hmi.errors import InvalidInput
from hmi.execution.decoding.writing import Writing
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.form import Form
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import Guide, Guides
from hmi.model.text.sampling import Sampling

ITEM = {
    "name": {"type": "string", "maxLength": 40},
    "count": {"type": "integer", "minimum": 0, "maximum": 500},
    "kind": {"enum": ["small", "large", "unknown"]},
}
FORM = Form(
    json_schema={
        "type": "array",
        "items": {
            "type": "object",
            "properties": ITEM,
            "required": list(ITEM),
            "additionalProperties": False,
        },
        "minItems": 20,
    }
)
"""At least 20 items: more than a run writes, so texts with and without the form are equally long."""
DEAREST = 1.05
"""The goal: the time with a form may be at most this multiple of the time without."""
WAYS = {"greedy": Sampling(), "drawn": Sampling(temperature=1.0, top_p=0.95)}
"""The ways of choosing tokens that are measured."""
Writes = Callable[..., float]
"""See `figures`."""


def figures(
    writer: Writing,
    tokenizer: GenerativeTokenizer,
    writes: Writes,
    modules: Sequence[TenantModule],
    precision: str,
    runs: int,
) -> Iterator[Figure]:
    """Yield the time of a token with a form divided by the time without: for one sequence, and for one
    sequence of each module, all written together.

    writes: writes one text of each module, and returns tokens a second of CPU time. The time includes that of
    the guides' thread. Its arguments are modules, a function that makes a text's guide, and a sampling.
    """
    guides = Guides(tokenizer)
    try:
        guides.guide(FORM)
    except InvalidInput as error:
        yield Figure("form_over_none", None, "x", DEAREST, why=error.message)
        return

    def guided() -> Guide:
        return guides.guide(FORM)

    works = {
        f"{kind}_{len(some)}_{how}": partial(
            writes, writer, modules=some, guide_of=guide_of, sampling=sampling
        )
        for how, sampling in WAYS.items()
        for some in (modules[:1], modules)
        for kind, guide_of in (("form", guided), ("none", lambda: None))
    }
    turns = in_turn(works, runs)
    for how in WAYS:
        for some in (1, len(modules)):
            ratio = median_ratio(turns, f"none_{some}_{how}", f"form_{some}_{how}")
            name = f"{precision}_write_{some}_tenants_{how}_form_over_none"
            yield Figure(name, ratio, "x", DEAREST, False, runs, "the same tokens without a form")
