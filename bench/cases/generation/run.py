"""`bench generation`: tokens a second of a language model's root, beside llama.cpp and other engines.

All works run on one thread, in turn. They write equally many tokens after prompts of equal length.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bench.cases.generation import forms, guessing, peers
from bench.cases.generation.llama_cpp import LlamaCpp, opened, written_forms
from bench.harness.home import installed_text
from bench.harness.report import Figure, in_turn, median_ratio
from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.execution.decoding.base import PAGE, Between
from hmi.execution.decoding.choose import QUICK
from hmi.execution.decoding.compiled import CompiledDecoder
from hmi.execution.decoding.writing import Answer, Writing
from hmi.execution.precision import Precision, available
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import UpperDecoder, split_decoder
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.locality import apply_locality, shipped_locality
from hmi.model.sources.source import find_source
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import Guide
from hmi.model.text.sampling import Sampling
from hmi.modulespec import GATED
from hmi.training.plans.defaults import WRITING_MODULE

TOGETHER = 16
"""Sequences that write together."""
PROMPT, WRITTEN, LONG = 64, 24, 512
"""Tokens of a prompt, tokens written after it, and tokens of the prompt that is only read."""
NEIGHBOUR = 2000
"""Tokens of the prompt beside which the time to a first token is measured."""
GREEDY = Sampling()
MODULE, LARGE = WRITING_MODULE, ModuleSpec(rank=8, sites=GATED)
"""A tenant's module, the default, takes .9 MB on SmolLM2. A large one takes 4.2 MB."""
EQUAL = {
    "llama_cpp": {"int8": "q8_0", "bf16": "f16"},
    "ctranslate2": {"int8": "int8", "fp32": "fp32"},
    "openvino": {"int8": "int8", "bf16": "bf16"},
    "vllm": {"int8": "int8", "bf16": "bf16"},
}
"""Each engine's form with as many bits a weight, by our precision."""
READ, ONE, ALL, TENANTS = f"read_{LONG}", "write_1", f"write_{TOGETHER}", f"write_{TOGETHER}_tenants"
GOALS = {TENANTS: 2.0, ALL: 3.0, ONE: 1.2, READ: 3.0}
"""The least ratio of our tokens a second to another engine's, by work."""
LLAMA_TENANTS = 10.0
"""The least ratio for tenants beside llama.cpp, which writes for one tenant after another."""
Rows = Callable[[Sequence[tuple[Answer, int, int]]], Tensor]


@dataclass(frozen=True)
class GenerationPlan:
    source: str
    split: int
    runs: int
    tenants: int | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    """The Python of each other engine's environment, by the engine's name."""


def run(plan: GenerationPlan, report: Callable[[str], None]) -> Iterator[Figure]:
    """Yield tokens a second of each work, then the ratios to other engines'. Raises HmiError."""
    torch.set_num_threads(1)
    source = find_source(plan.source)
    report(f"loading {source.name}")
    model = load_language_model(source)
    n = 3 if plan.split else 1
    lower, upper = split_decoder(model.decoder, plan.split, model.tokenizer.begin, n)
    weights = shipped_locality(source.sha256, plan.split, n) if plan.split else None
    if weights is not None:
        apply_locality(weights, (lower, upper))
    for part in (lower, upper):
        part.requires_grad_(False)
    text = "\n".join(installed_text())[: 10 * LONG * TOGETHER]
    ids = model.tokenizer.encode([text], LONG * TOGETHER + 1)[0].ids[1:]
    prompts = [[model.tokenizer.begin, *ids[i * LONG : i * LONG + LONG - 1]] for i in range(TOGETHER)]
    report("comparing greedy answers with full recomputation")
    yield Figure("answers_that_differ", _that_differ(lower, upper, prompts), "", 0, False, len(prompts))
    works = _works(plan, lower, upper, prompts)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        why = _add_llama(works, stack, source.folder, folder, prompts, report)
        if plan.peers and why is None:
            modules = [module_of(upper.shape, len(upper.layers), MODULE, seed) for seed in range(TOGETHER)]
            peers.write_models(_gguf(source.folder), modules, MODULE, upper.shape, plan.split, folder)
        others = peers.opened(plan.peers, None if why else folder, stack, report)
        missing = others.why if why is None else {"llama_cpp": why} | others.why
        yield from _below_best(others.running, lower, upper, prompts)
        works |= _peer_works(others.running, prompts)
        report("writing in turn")
        turns = in_turn(works, plan.runs)
    found = {name: statistics.median(rates) for name, rates in turns.items()}
    for name, rate in found.items():
        yield Figure(f"{name}", rate, "tokens/s", runs=plan.runs)
    report("writing with a form, and without")
    yield from _with_forms(model.tokenizer, lower, upper, prompts, plan.runs)
    report("writing with guesses, and without")
    yield from guessing.figures(upper, model.tokenizer, found_rows(lower), text, plan.runs)
    report(f"first tokens beside a prompt of {NEIGHBOUR} tokens")
    yield from _first_tokens(lower, upper, ids, plan.runs)
    for engine in EQUAL:
        yield from _ratios(engine, turns, plan.runs, missing.get(engine))
    yield from _many_over_few(turns, plan)


def _works(
    plan: GenerationPlan, lower: CausalLower, upper: UpperDecoder, prompts: Sequence[list[int]]
) -> dict[str, Callable[[], float]]:
    """HMI's works by name. Each runs once when it is called, and returns tokens a second."""
    made = partial(module_of, upper.shape, len(upper.layers))
    modules = [made(MODULE, seed) for seed in range(TOGETHER)]
    large = [made(LARGE, seed) for seed in range(TOGETHER)]
    looked_up: dict[str, Rows] = {"": found_rows(lower)}
    if plan.split:
        looked_up["_misses_computed"] = partial(computed_rows, lower)
    works: dict[str, Callable[[], float]] = {}
    for p in available():
        executor = CompiledDecoder(upper, TOGETHER * (LONG // PAGE + 2), p)
        for how, rows_of in looked_up.items():
            writer = Writing(executor, rows_of, step_rows=LONG, guesses=False)  # one token each in a step
            writes = partial(_writes, writer, prompts)
            works |= {
                f"{p}_read_{LONG}{how}": partial(_reads, writer, prompts),
                f"{p}_write_1{how}": partial(writes, [None]),
                f"{p}_write_{TOGETHER}{how}": partial(writes, [None] * TOGETHER),
                f"{p}_write_{TOGETHER}_tenants{how}": partial(writes, modules),
                f"{p}_write_{TOGETHER}_large_tenants{how}": partial(writes, large),
            }
            if plan.tenants is not None and p == available()[-1]:
                all_of_them = _many(modules, plan.tenants, executor)
                for count in _counts(plan.tenants):
                    works[f"{p}_write_{TOGETHER}_of_{count}{how}"] = _drawn(writes, all_of_them[:count])
    return works


def _counts(tenants: int) -> list[int]:
    """The numbers of tenants whose texts are written 16 at a time: from one up to `tenants`."""
    return [count for count in (1, 1000) if count < tenants] + [tenants]


def _many(modules: Sequence[TenantModule], count: int, executor: CompiledDecoder) -> list[TenantModule]:
    """So many tenants' modules, each with an executor's form of its own. They share tensors, which only the
    forms are made of, or ten thousand would not fit into memory."""
    sites = [cast(Mapping[str, LowRankLayer], module.sites) for module in modules]
    many = [TenantModule(sites[i % len(sites)]) for i in range(count)]
    for module in many:
        executor.prepare(module)
    return many


@torch.inference_mode()
def _that_differ(lower: CausalLower, upper: UpperDecoder, prompts: Sequence[list[int]]) -> int:
    """Write greedy answers of PROMPT tokens together in fp32, and check them. Returns how many are wrong.

    Plain torch scores the whole sequence. An answer is wrong if one of its tokens scores more than .001 less
    than the best word.
    """
    executor = CompiledDecoder(upper, len(prompts) * (2 * PROMPT // PAGE), "fp32")
    writer = Writing(executor, partial(computed_rows, lower))
    answers = [Answer(0, prompt[:PROMPT], PROMPT) for prompt in prompts]
    for answer in answers:
        writer.add(answer)
        writer.step()
    while len(writer):
        writer.step()
    wrong = 0
    for answer in answers:
        wrong += _shortfall(lower, upper, answer.ids, PROMPT) > 1e-3
    return wrong


def _shortfall(lower: CausalLower, upper: UpperDecoder, ids: Sequence[int], written: int) -> float:
    """Return by how much one of the last `written` tokens at most scores less than the best word there."""
    scores = upper.logits(upper(lower(torch.tensor([ids]))))[0, -written - 1 : -1]
    chosen = scores[torch.arange(written), torch.tensor(ids[-written:])]
    return float((scores.amax(-1) - chosen).max())


@torch.inference_mode()
def _below_best(
    running: Mapping[str, peers.Peer], lower: CausalLower, upper: UpperDecoder, prompts: Sequence[list[int]]
) -> Iterator[Figure]:
    """Yield by how much a greedy token of each engine at most scores less than the best, over all prompts.

    Forms with tenants are left out: their answers are not the model's.
    """
    for name, peer in running.items():
        if not name.endswith("_tenants"):
            begun = [prompt[:PROMPT] for prompt in prompts]
            answers = [a + b for a, b in zip(begun, peer.run(begun, PROMPT)[0], strict=True)]
            far = [_shortfall(lower, upper, ids, PROMPT) for ids in answers]
            yield Figure(f"{name}_most_below_best", max(far), "logits", runs=len(far))
            differ = sum(short > 1e-3 for short in far)
            yield Figure(f"{name}_answers_that_differ", differ, "", runs=len(far))


def _ratios(
    engine: str, turns: Mapping[str, Sequence[float]], runs: int, why: str | None
) -> Iterator[Figure]:
    """Yield HMI's rates divided by an engine's: the best of each, then those at equal precision.

    Each is the median of the turns' ratios. `why` says why the engine is not there.
    """
    equal = {p: form for p, form in EQUAL[engine].items() if f"{p}_{ONE}" in turns}
    for case, goal in GOALS.items():
        one_by_one = engine == "llama_cpp" and case == TENANTS
        peer, goal = (ONE, LLAMA_TENANTS) if one_by_one else (case, goal)
        theirs = _works_of(engine, peer, turns)
        if why is not None or not equal:
            why = why or "no kernel of its precisions here"
            yield Figure(f"{case}_over_{engine}", None, "x", goal, why=why)
        elif theirs:  # else the engine has no tenants
            best = max(theirs, key=lambda name: statistics.median(turns[name]))
            mine = max(equal, key=lambda p: statistics.median(turns[f"{p}_{case}"]))
            ratio = median_ratio(turns, f"{mine}_{case}", best)
            yield Figure(f"{case}_over_{engine}", ratio, "x", goal, True, runs, f"{mine} : {best}")
            for p, form in equal.items():
                name = f"{engine}_{form}_{peer}"
                if name in turns:
                    ratio = median_ratio(turns, f"{p}_{case}", name)
                    yield Figure(f"{case}_over_{engine}_{p}", ratio, "x", None, True, runs, form)


def _works_of(engine: str, work: str, names: Iterable[str]) -> list[str]:
    """The names of an engine's works of this kind, one for each form."""
    return [name for name in names if name.startswith(f"{engine}_") and name.endswith(f"_{work}")]


def _many_over_few(turns: Mapping[str, Sequence[float]], plan: GenerationPlan) -> Iterator[Figure]:
    """Yield the rates of 16 texts of many tenants, or of one, divided by that of 16 tenants."""
    p = available()[-1]
    for count in [] if plan.tenants is None else _counts(plan.tenants):
        share = median_ratio(turns, f"{p}_write_{TOGETHER}_of_{count}", f"{p}_{TENANTS}")
        yield Figure(f"{p}_of_{count}_tenants_over_{TOGETHER}", share, "x", 0.92, True, plan.runs)


def _add_llama(
    works: dict[str, Callable[[], float]],
    stack: ExitStack,
    source: Path,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    report: Callable[[str], None],
) -> str | None:
    """Add llama.cpp's works, whose forms are files in `folder`. Returns why it cannot run, or None."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "no peer is installed: pip install llama-cpp-python"
    report("writing llama.cpp's forms")
    theirs = [[i - 1 for i in prompt] for prompt in prompts]  # our ids are the source's plus one
    for form, file in written_forms(_gguf(source), folder).items():
        peer = stack.enter_context(opened(file, TOGETHER, LONG + PAGE))
        works |= {
            f"llama_cpp_{form}_read_{LONG}": partial(_llama_reads, peer, theirs),
            f"llama_cpp_{form}_write_1": partial(_llama_writes, peer, theirs[:1]),
            f"llama_cpp_{form}_write_{TOGETHER}": partial(_llama_writes, peer, theirs),
        }
    return None


def _gguf(source: Path) -> Path:
    """The source's GGUF file. Raises InvalidInput if it has none."""
    path = source if source.is_file() else next(iter(sorted(source.glob("*.gguf"))), None)
    if path is None:
        raise InvalidInput(f"{source} has no GGUF file, which llama.cpp reads", field="source")
    return path


def _peer_works(
    running: Mapping[str, peers.Peer], prompts: Sequence[list[int]]
) -> dict[str, Callable[[], float]]:
    """The works of other engines by name, as those of `_works`."""
    works: dict[str, Callable[[], float]] = {}
    for name, peer in running.items():
        if name.endswith("_tenants"):
            works[f"{name.removesuffix('_tenants')}_{TENANTS}"] = partial(_peer_writes, peer, prompts)
        else:
            works |= {
                f"{name}_{READ}": partial(_peer_reads, peer, prompts),
                f"{name}_{ONE}": partial(_peer_writes, peer, prompts[:1]),
                f"{name}_{ALL}": partial(_peer_writes, peer, prompts),
            }
    return works


def _peer_reads(peer: peers.Peer, prompts: Sequence[Sequence[int]]) -> float:
    return LONG / peer.run(prompts[:1], 1)[1][0]


def _peer_writes(peer: peers.Peer, prompts: Sequence[Sequence[int]]) -> float:
    _, (_, took) = peer.run([prompt[:PROMPT] for prompt in prompts], WRITTEN + 1)
    return len(prompts) * WRITTEN / took


def _reads(writer: Writing, prompts: Sequence[list[int]]) -> float:
    """Read a prompt of LONG tokens. Returns tokens a second of CPU time."""
    writer.add(Answer(object(), prompts[0], 1))
    begun = time.process_time()
    with torch.inference_mode():
        writer.step()
    took = time.process_time() - begun
    assert not len(writer)
    return LONG / took


def _with_forms(
    tokenizer: GenerativeTokenizer,
    lower: CausalLower,
    upper: UpperDecoder,
    prompts: Sequence[list[int]],
    runs: int,
) -> Iterator[Figure]:
    precision: Precision = next((name for name in QUICK if name in available()), "fp32")
    executor = CompiledDecoder(upper, TOGETHER * (PROMPT // PAGE + 3), precision)
    writer = Writing(executor, found_rows(lower), guesses=False)
    modules = [module_of(upper.shape, len(upper.layers), MODULE, seed) for seed in range(TOGETHER)]

    def writes(writer: Writing, **given: Any) -> float:
        return _writes(writer, prompts, **given)

    yield from forms.figures(writer, tokenizer, writes, modules, precision, runs)


def _first_tokens(lower: CausalLower, upper: UpperDecoder, ids: Sequence[int], runs: int) -> Iterator[Figure]:
    """Yield the time from a prompt's arrival to its first token, alone and beside a longer prompt that is
    read in steps of as many rows as the reading above. It arrives at any moment of that reading."""
    draw, rows_of = random.Random(0), found_rows(lower)
    begin = lower.begin
    short, long = [begin, *ids[: PROMPT - 1]], [begin, *ids[PROMPT : PROMPT + NEIGHBOUR - 1]]
    for precision in available():
        writer = Writing(CompiledDecoder(upper, 3 * NEIGHBOUR // PAGE, precision), rows_of, step_rows=LONG)
        took = _first_token(writer, long, None, 0.0)
        works = {
            "alone": lambda: _first_token(writer, short, None, 0.0),  # noqa: B023 (called in this turn)
            "beside": lambda: _first_token(writer, short, long, draw.uniform(0, took)),  # noqa: B023
        }
        found = {name: statistics.median(times) for name, times in in_turn(works, 3 * runs).items()}
        for name, seconds in found.items():
            yield Figure(f"{precision}_first_token_{name}", 1e3 * seconds, "ms", runs=3 * runs)
        ratio = found["beside"] / found["alone"]
        peer = f"a neighbour's {NEIGHBOUR} tokens, steps of {LONG} rows"
        yield Figure(f"{precision}_first_token_beside_over_alone", ratio, "x", 1.5, False, 3 * runs, peer)


@torch.inference_mode()
def _first_token(writer: Writing, prompt: list[int], neighbour: list[int] | None, after_s: float) -> float:
    """Return the seconds from a prompt's arrival to its first token.

    It arrives `after_s` seconds after a neighbour's prompt, of which nothing is known from earlier turns.
    """
    mine, told = Answer(object(), prompt, 1, tenant="short"), list[float]()
    arrival = time.perf_counter() + (after_s if neighbour is not None else 0.0)
    waiting = [mine]

    def between() -> None:
        if waiting and time.perf_counter() >= arrival:
            writer.add(waiting.pop())
            if writer.let_in():
                told.append(time.perf_counter())

    if neighbour is None:
        writer.add(waiting.pop())
    else:
        writer.add(Answer(object(), neighbour, 1, tenant="long"))
    while len(writer) or waiting:
        if waiting and time.perf_counter() >= arrival:
            writer.add(waiting.pop())
        if any(answer is mine for answer, _ in writer.step(Between(between))):
            told.append(time.perf_counter())
    return told[0] - arrival


def _writes(
    writer: Writing,
    prompts: Sequence[list[int]],
    modules: Sequence[TenantModule | None],
    guide_of: Callable[[], Guide | None] = lambda: None,
    sampling: Sampling = GREEDY,
) -> float:
    """Write after prompts of PROMPT tokens, one for each module. Returns tokens a second of CPU time."""
    owner = object()  # nothing is found of the turn before
    with torch.inference_mode():
        for prompt, module in zip(prompts, modules, strict=False):
            made = partial(Answer, owner, prompt[:PROMPT], WRITTEN + 1, module=module)
            writer.add(made(sampling=sampling, guide=guide_of()))
        count = 0
        while count < len(modules):
            count += len(writer.step())
        begun = time.process_time()
        while len(writer):
            writer.step()
    return len(modules) * WRITTEN / (time.process_time() - begun)


def _drawn(
    work: Callable[[Sequence[TenantModule | None]], float], modules: Sequence[TenantModule]
) -> Callable[[], float]:
    """Return a work that draws TOGETHER tenants at each call. So no cache holds the modules of many."""
    draw = random.Random(0)
    return lambda: work(draw.choices(modules, k=TOGETHER))


def _llama_reads(peer: LlamaCpp, prompts: Sequence[list[int]]) -> float:
    begun = time.process_time()
    peer.prefill(prompts[:1])
    return LONG / (time.process_time() - begun)


def _llama_writes(peer: LlamaCpp, prompts: Sequence[list[int]]) -> float:
    tokens = peer.prefill([prompt[:PROMPT] for prompt in prompts])
    begun = time.process_time()
    for i in range(WRITTEN):
        tokens = peer.decode(tokens, PROMPT + i)
    return len(prompts) * WRITTEN / (time.process_time() - begun)


def module_of(shape: DecoderShape, layers: int, spec: ModuleSpec, seed: int) -> TenantModule:
    """Make a random LoRA of this rank, at these sites of each layer."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, int]] = dict.fromkeys(GATED, (shape.dim, shape.ffn))
    sizes |= {"q": (shape.dim, wide), "k": (shape.dim, narrow), "v": (shape.dim, narrow)}
    sizes |= {"o": (wide, shape.dim), "fo": (shape.ffn, shape.dim)}
    draw = torch.Generator().manual_seed(seed)
    changes = {
        f"{i}-{site}": LowRankLayer(
            torch.randn(spec.rank, sizes[site][0], generator=draw) * sizes[site][0] ** -0.5,
            0.01 * torch.randn(sizes[site][1], spec.rank, generator=draw),
        )
        for i in range(layers)
        for site in spec.all_sites
    }
    return TenantModule(changes).eval().requires_grad_(False)


def found_rows(lower: CausalLower) -> Rows:
    """Return a function that gives rows as if a look-up found all of them. A word has one row everywhere."""
    rows = torch.zeros(lower.shape.vocab, lower.shape.dim)
    with torch.inference_mode():
        for some in torch.arange(1, len(rows)).split(4096):
            rows[some] = lower.ngram_entries(some[:, None])[:, 0]
        rows[lower.begin] = lower.first_row()

    def rows_of(wanted: Sequence[tuple[Answer, int, int]]) -> Tensor:
        return rows[[i for answer, begin, end in wanted for i in answer.span(begin, end)]]

    return rows_of


def computed_rows(lower: CausalLower, wanted: Sequence[tuple[Answer, int, int]]) -> Tensor:
    """Rows as if a look-up found nothing: each token's longest n-gram passes through the lower layers."""
    windows = [
        answer.span(max(1, at - lower.n + 1), at + 1)
        for answer, begin, end in wanted
        for at in range(begin, end)
    ]
    out = torch.empty(len(windows), lower.shape.dim)
    for order in {len(window) for window in windows}:
        at = [i for i, window in enumerate(windows) if len(window) == order]
        if order:
            out[at] = lower.ngram_entries(torch.tensor([windows[i] for i in at]))[:, 0]
        else:
            out[at] = lower.first_row()
    return out
