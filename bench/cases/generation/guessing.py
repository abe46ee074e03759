"""What guessed tokens gain: whole texts of one, four and sixteen sequences, with guesses and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from bench.harness.report import Figure, in_turn, median_ratio
from hmi.execution.decoding.base import PAGE, StepExecutor
from hmi.execution.decoding.writing import Answer, RowsOf, Writing
from hmi.model.text.form import Form
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import Guides
from hmi.model.text.sampling import Sampling

WORDS, MOST = 120, 64
"""Words of the text that a prompt asks about, and the most tokens of an answer."""
COUNTS, LONE = (1, 4, 16), 4
"""Sequences that are written at a time. Of single ones, so many are written one after another."""
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
"""What chats ask for. The kind `free` goes on after half of the text, without a question."""
GOALS = {("extract", 1): 1.5, ("form", 1): 1.2}
LEAST = 0.97
"""The least gain of all others: what guesses may cost a text."""


def figures(
    executors: Mapping[str, StepExecutor],
    tokenizer: GenerativeTokenizer,
    rows_of: RowsOf,
    texts: Sequence[str],
    runs: int,
) -> Iterator[Figure]:
    """Yield the number of texts that guesses changed, and for each kind of text the gain in tokens a second of
    CPU time after the first token, with the tokens of a step and the share of guesses that came true.

    texts: English prose. executors: by precision, each with pages for 16 sequences.
    """
    prompts = _prompts(tokenizer, " ".join(texts).split())
    ends, guides, told = frozenset(tokenizer.ends), Guides(tokenizer), dict[str, list[Answer]]()
    shares = dict[str, float]()

    def work(
        name: str, executor: StepExecutor, kind: str, count: int, heat: float, *, guesses: bool
    ) -> float:
        writer = Writing(executor, rows_of, guesses=guesses)
        wanted = prompts[kind][: max(count, LONE)]
        told[name] = [
            Answer(
                object(),
                ids,
                MOST,
                ends,
                sampling=Sampling(temperature=heat, seed=i),
                guide=guides.guide(FACTS) if kind == "form" else None,
            )
            for i, ids in enumerate(wanted)
        ]
        rate = _rate(writer, told[name], count)
        shares[name] = writer.true / max(1, writer.guessed)
        return rate

    works: dict[str, Callable[[], float]] = {}
    cases = [(kind, count, 0.0) for kind in prompts for count in COUNTS]
    cases += [(kind, 1, 1.0) for kind in ("extract", "free") if kind in prompts]
    names = {}
    for precision, executor in executors.items():
        for kind, count, heat in cases:
            name = f"{precision}_{kind}_{count}{'_drawn' if heat else ''}"
            names[name] = kind, count
            for how in (True, False):
                key = f"{name}_{'guessed' if how else 'plain'}"
                works[key] = partial(work, key, executor, kind, count, heat, guesses=how)
    turns = in_turn(works, runs)
    ids = {key: [answer.ids for answer in answers] for key, answers in told.items()}
    differ = sum(
        a != b for name in names for a, b in zip(ids[f"{name}_guessed"], ids[f"{name}_plain"], strict=True)
    )
    yield Figure("texts_that_guesses_change", differ, "", 0, False, sum(map(len, ids.values())) // 2)
    for name, (kind, count) in names.items():
        guessed, plain = f"{name}_guessed", f"{name}_plain"
        yield Figure(plain, statistics.median(turns[plain]), "tokens/s", runs=runs)
        gain = median_ratio(turns, guessed, plain)
        goal = LEAST if name.endswith("_drawn") else GOALS.get((kind, count), LEAST)
        peer = f"{shares[guessed]:.0%} of the guesses came true"
        yield Figure(f"{name}_guesses_over_none", gain, "x", goal, True, runs, peer)


def _prompts(tokenizer: GenerativeTokenizer, words: Sequence[str]) -> dict[str, list[list[int]]]:
    """16 prompts of each kind."""
    step = len(words) // max(COUNTS)
    passages = [" ".join(words[i * step : i * step + WORDS]) for i in range(max(COUNTS))]
    chats = {
        kind: [tokenizer.chat([{"role": "user", "content": f"{asked}\n\n{text}"}]) for text in passages]
        for kind, asked in ASKED.items()
    }
    halves = [text[: len(text) // 2] for text in passages]
    whole = 1 << 20
    found = {
        kind: [list(each.ids) for each in tokenizer.encode(some, whole, specials=True)]
        for kind, some in chats.items()
    }
    return {**found, "free": [list(each.ids) for each in tokenizer.encode(halves, whole)]}


@torch.inference_mode()
def _rate(writer: Writing, answers: Sequence[Answer], count: int) -> float:
    """Write answers, `count` at a time. Returns tokens a second of CPU time after all have their first."""
    written, took = 0, 0.0
    for begin in range(0, len(answers), count):
        some = answers[begin : begin + count]
        for answer in some:
            writer.add(answer)
        while not all(answer.written or answer.ended for answer in some):
            writer.step()
        before, begun = sum(len(answer.written) for answer in some), time.process_time()
        while len(writer):
            writer.step()
        took += time.process_time() - begun
        written += sum(len(answer.written) for answer in some) - before
    return written / took


def pages_of(tokens: int) -> int:
    """The pages of 16 sequences of a prompt of so many tokens and an answer."""
    return max(COUNTS) * -(-(tokens + MOST) // PAGE)
