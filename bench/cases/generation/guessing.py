"""Guessed tokens: their gain in speed for one, four and sixteen texts at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from bench.harness.report import Figure, in_turn, median_ratio
from hmi.errors import InvalidInput
from hmi.execution.decoding.base import PAGE, StepExecutor
from hmi.execution.decoding.compiled import CompiledDecoder
from hmi.execution.decoding.writing import Answer, RowsOf, Writing
from hmi.execution.precision import available
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.text.form import Form
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import Guide, Guides, Spelling
from hmi.model.text.sampling import Sampling

WORDS, MOST = 120, 64
"""A prompt asks about a text of WORDS words. An answer has at most MOST tokens."""
COUNTS, LONE = (1, 4, 16), 4
"""COUNTS: how many texts are written at a time. LONE: how many are written one after another."""
FACTS = Form(
    json_schema={
        "type": "object",
        "properties": {
            "project_name": {"type": "string", "maxLength": 30},
            "license": {"enum": ["MIT", "Apache-2.0", "BSD", "unknown"]},
            "programming_language": {"type": "string", "maxLength": 20},
            "is_library": {"type": "boolean"},
            "audience": {"enum": ["developers", "researchers", "everyone"]},
            "number_of_features": {"type": "integer", "minimum": 0, "maximum": 50},
        },
        "required": [
            "project_name",
            "license",
            "programming_language",
            "is_library",
            "audience",
            "number_of_features",
        ],
        "additionalProperties": False,
    }
)
ASKED = {
    "extract": "Copy the two sentences of this text that say most about its subject, word for word.",
    "summarise": "Summarise this text in two sentences.",
    "form": "Describe the project of this text as JSON.",
}
"""The questions of the chats, by kind. Two more kinds have no question. In `free` the model continues half of
a text. In `people` it is made to write the end that people wrote, which repeats little."""
GOALS = {("extract", 1): 1.5, ("form", 1): 1.2}
LEAST = 0.97
"""The goal of all other kinds: the least speed with guesses, as a fraction of that without."""


Works = dict[str, Callable[[], float]]


class _Told(Spelling):
    """Allows only a given text, token by token. It does not offer those tokens as guesses."""

    def ahead(self) -> Sequence[int]:
        return ()


def figures(
    upper: UpperDecoder, tokenizer: GenerativeTokenizer, rows_of: RowsOf, text: str, runs: int
) -> Iterator[Figure]:
    """Yield the number of texts that guesses changed, and how much faster each kind is with guesses.

    The speed is in tokens a second of CPU time, after each text's first token. The figures also name the
    share of guesses that came true. text: English prose.
    """
    try:
        prompts, guides = _prompts(tokenizer, text.split()), Guides(tokenizer)
        guides.guide(FACTS)
    except InvalidInput as error:
        yield Figure("guesses_over_none", None, "x", LEAST, why=error.message)
        return
    pages = max(COUNTS) * max(-(-(len(ids) + MOST) // PAGE) for some in prompts.values() for ids in some)
    works, told = Works(), dict[str, list[Answer]]()
    shares, kinds = dict[str, float](), dict[str, tuple[str, int]]()

    def work(
        name: str, executor: StepExecutor, kind: str, count: int, heat: float, *, guesses: bool
    ) -> float:
        writer, told[name] = Writing(executor, rows_of, guesses=guesses), []
        for i, ids in enumerate(prompts[kind][: max(count, LONE)]):
            guide: Guide | None = guides.guide(FACTS) if kind == "form" else None
            if kind == "people":
                ids, guide = ids[:-MOST], _Told(ids[-MOST:])
            made = partial(Answer, sampling=Sampling(heat, seed=i), guide=guide)
            told[name].append(made(object(), ids, MOST, frozenset(tokenizer.ends)))
        rate = _rate(writer, told[name], count)
        shares[name] = writer.true / max(1, writer.guessed)
        return rate

    cases = [(kind, count, 0.0) for kind in prompts for count in COUNTS]
    for precision in [each for each in available() if each != "fp32"]:
        executor = CompiledDecoder(upper, pages, precision)
        for kind, count, heat in [*cases, ("extract", 1, 1.0), ("free", 1, 1.0)]:
            name = f"{precision}_{kind}_{count}{'_drawn' if heat else ''}"
            kinds[name] = kind, count
            for how, guesses in (("guessed", True), ("plain", False)):
                key = f"{name}_{how}"
                works[key] = partial(work, key, executor, kind, count, heat, guesses=guesses)
    turns = in_turn(works, runs)
    pairs = [
        pair for name in kinds for pair in zip(told[f"{name}_guessed"], told[f"{name}_plain"], strict=True)
    ]
    differ = sum(one.ids != other.ids for one, other in pairs)
    yield Figure("texts_that_guesses_change", differ, "", 0, False, len(pairs))
    for name, about in kinds.items():
        plain, guessed = f"{name}_plain", f"{name}_guessed"
        yield Figure(plain, statistics.median(turns[plain]), "tokens/s", runs=runs)
        goal = LEAST if name.endswith("_drawn") else GOALS.get(about, LEAST)
        peer = f"{shares[guessed]:.0%} of the guesses came true"
        gain = median_ratio(turns, guessed, plain)
        yield Figure(f"{name}_guesses_over_none", gain, "x", goal, True, runs, peer)


def _prompts(tokenizer: GenerativeTokenizer, words: Sequence[str]) -> dict[str, list[list[int]]]:
    """Return 16 prompts of each kind. Raises InvalidInput if the model has no chats."""
    step, whole = len(words) // max(COUNTS), 1 << 20
    passages = [" ".join(words[i * step : i * step + WORDS]) for i in range(max(COUNTS))]
    found = {}
    for kind, asked in ASKED.items():
        chats = [tokenizer.chat([{"role": "user", "content": f"{asked}\n\n{text}"}]) for text in passages]
        found[kind] = tokenizer.encode(chats, whole, specials=True)
    found["free"] = tokenizer.encode([text[: len(text) // 2] for text in passages], whole)
    found["people"] = tokenizer.encode(passages, whole)
    return {kind: [list(each.ids) for each in some] for kind, some in found.items()}


@torch.inference_mode()
def _rate(writer: Writing, answers: Sequence[Answer], count: int) -> float:
    """Write answers, `count` at a time. Returns tokens a second of CPU time.

    The time begins when all texts have their first token.
    """
    written, took = 0, 0.0
    for begin in range(0, len(answers), count):
        some = answers[begin : begin + count]
        for answer in some:
            writer.add(answer)
        while not all(answer.written for answer in some):
            writer.step()
        before, begun = sum(len(answer.written) for answer in some), time.process_time()
        while len(writer):
            writer.step()
        took += time.process_time() - begun
        written += sum(len(answer.written) for answer in some) - before
    return written / took
