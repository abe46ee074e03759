"""Answers of many sequences, step by step, against the whole model computed anew for each token."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from hmi.engine.schedule.turns import Turns
from hmi.errors import InvalidInput
from hmi.execution.decoding.base import PAGE, Between
from hmi.execution.decoding.guesses import Guesses, worth
from hmi.execution.decoding.sampling import Chosen
from hmi.execution.decoding.writing import Answer, RowsOf, Shares, Writing, _NoShares
from hmi.execution.precision import available
from hmi.model.network.decoder import Decoder, attend_before, rotary
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import UpperDecoder, split_decoder
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from hmi.model.text.guides import Spelling
from hmi.model.text.sampling import Sampling
from tests.hmi.execution.test_decoding_steps import BEGIN, MODULES, executor_of, module_of, tiny

N, ENDS = 2, frozenset(range(5, 9))
NEAR = 1e-3
"""Where the reference's two best scores differ by less, either counts."""
DEVICE = [
    pytest.param(f"{device} fp32 {way}", marks=pytest.mark.gpu if device == "gpu" else ())
    for device, way in (("twin", "groups"), ("gpu", "groups"), ("gpu", "kernel"))
]
SLOTS = 3
"""The number of a device's slots. A step has more modules, so they drive each other out."""
DRAWN = Sampling(temperature=1.0, seed=7)
TABLES: dict[int, tuple[CausalLower, Tensor]] = {}


Parts = tuple[CausalLower, UpperDecoder]


def parts_of(seed: int) -> Parts:
    torch.manual_seed(seed)
    decoder = Decoder(tiny("llama")).eval().requires_grad_(False)
    for p in decoder.parameters():
        p.copy_(torch.randn_like(p) * p.shape[1] ** -0.5 if p.dim() == 2 else 1 + 0.2 * torch.randn_like(p))
    lower, upper = split_decoder(decoder, 1, BEGIN, N)
    return lower.requires_grad_(False), upper.requires_grad_(False)


@pytest.fixture(scope="module")
def parts() -> Parts:
    return parts_of(3)


@torch.inference_mode()
def table_of(lower: CausalLower) -> Tensor:
    """The rows of all bigrams [vocab, vocab, dim]; of words alone at 0, as after the begin token."""
    ids = torch.arange(lower.shape.vocab)
    pairs = torch.cartesian_prod(ids, ids)
    rows = lower.ngram_entries(pairs)[:, 0].unflatten(0, (len(ids), len(ids)))
    rows[0] = rows[BEGIN] = lower.ngram_entries(ids[:, None])[:, 0]
    rows[0, BEGIN] = lower.first_row()
    return rows


def writing(
    parts: Parts,
    way: str,
    pages: int,
    step_rows: int = 64,
    shares: Shares | None = None,
    *,
    guesses: bool = True,
) -> Writing:
    lower, upper = parts
    executor = executor_of(way, upper, pages, slots=SLOTS, seed=pages)
    return Writing(executor, rows_of(lower), step_rows=step_rows, shares=shares, guesses=guesses)


def rows_of(lower: CausalLower) -> RowsOf:
    if id(lower) not in TABLES:
        TABLES[id(lower)] = lower, table_of(lower)
    _, table = TABLES[id(lower)]

    def found(wanted: Sequence[tuple[Answer, int, int]]) -> Tensor:
        spans = [(a.span(max(begin - 1, 0), end), begin) for a, begin, end in wanted]
        pairs = [pair for ids, begin in spans for pair in pairwise(ids if begin else [0, *ids])]
        before, ids = torch.tensor(pairs).T
        return table[before, ids]

    return found


def prompts(count: int, seed: int, longest: int = 40) -> Iterator[list[int]]:
    draw = random.Random(seed)
    for _ in range(count):
        yield [BEGIN, *draw.choices(range(2, 150), k=draw.randrange(0, longest))]


@torch.inference_mode()
def run(writer: Writing, answers: Sequence[Answer], seed: int = 0) -> list[tuple[Answer, Chosen | None]]:
    """Run to the end. Sequences join one by one, and some before others have ended. Returns what each step
    returns, one after another."""
    draw, waiting, told = random.Random(seed), list(answers), list[tuple[Answer, Chosen | None]]()
    while waiting or len(writer):
        while waiting and (not len(writer) or draw.random() < 0.6):
            writer.add(waiting.pop(0))
        told += writer.step()
    return told


@torch.inference_mode()
def check(parts: Parts, answers: Sequence[Answer]) -> None:
    """Each token is the best by the whole sequences, padded, through all layers at once."""
    lower, upper = parts
    shape, modules = upper.shape, {id(a.module): a.module for a in answers}
    for module in modules.values():
        some = [a for a in answers if a.module is module]
        ids = torch.zeros(len(some), max(len(a.ids) for a in some), dtype=torch.int64)
        for i, answer in enumerate(some):
            ids[i, : len(answer.ids)] = torch.tensor(answer.ids)
        x = lower(ids)
        for i, layer in enumerate(upper.layers):
            delta = {} if module is None else {"delta": module.delta(i)}
            x = layer(x, rotary(ids.shape[1], shape.head_dim, shape.base), attend_before, **delta)
        scores = upper.logits(x)
        for row, answer in zip(scores, some, strict=True):
            for at in range(len(answer.prompt), len(answer.ids)):
                assert row[at - 1].max() - row[at - 1, answer.ids[at]] < NEAR


@pytest.mark.parametrize("way", ["plain", "fp32", *DEVICE])
def test_greedy_answers_are_those_of_full_recomputation(parts: Parts, way: str) -> None:
    """1,000 prompts: with and without modules, in chunks, set back, with known beginnings."""
    writer = writing(parts, way, pages=44)
    answers = [
        Answer(f"owner-{i % 4}", prompt, most=1 + i % 20, ends=ENDS, module=MODULES[i % 4])
        for i, prompt in enumerate(prompts(1000 if way == "fp32" else 200, seed=1))
    ]
    long = [BEGIN, *random.Random(2).choices(range(2, 150), k=150)]
    answers[100:130] = [Answer(f"owner-{i % 2}", long, 20, module=MODULES[i % 2]) for i in range(30)]
    run(writer, answers)
    for answer in answers:
        assert (answer.ids[-1] in answer.ends) == (answer.ended == "end")
        assert answer.ended == "end" or len(answer.written) == answer.most
        assert not answer.ends & set(answer.written[:-1])
    assert {answer.ended for answer in answers} == {"end", "length"}
    assert writer.set_back > 10
    assert sum(answer.cached or 0 for answer in answers[100:130]) > 1000
    assert writer.arena.room == 44
    check(parts, answers)


@pytest.mark.parametrize("way", ["fp32", *DEVICE])
@pytest.mark.parametrize("wants", [Sampling(), Sampling(temperature=1.2, top_p=0.9, seed=5, logprobs=2)])
def test_a_text_is_the_same_alone_and_in_any_company(parts: Parts, wants: Sampling, way: str) -> None:
    def answers() -> list[Answer]:
        return [
            Answer(i % 4, prompt, most=30, module=MODULES[i % 4], sampling=wants)
            for i, prompt in enumerate(prompts(24 if way == "fp32" else 9, seed=4))
        ]

    texts = []
    for pages, step_rows in ((400, 64), (400, 7), (14, 64)):
        found, writer = answers(), writing(parts, way, pages, step_rows)
        run(writer, found, seed=pages)
        assert (writer.set_back > 0) == (pages == 14)
        texts.append([answer.ids for answer in found])
    alone = answers()
    for answer in alone:
        run(writing(parts, way, 20), [answer])
    assert texts == [[answer.ids for answer in alone]] * 3


@pytest.mark.parametrize(
    "wants",
    [
        Sampling(),
        Sampling(temperature=1.2, top_p=0.9, seed=5, logprobs=2),
        Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logprobs=1),
        Sampling(temperature=0.8, frequency_penalty=0.5, seed=9),
    ],
)
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_guesses_change_no_text_whether_they_are_right_or_wrong(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, wants: Sampling, right: float
) -> None:
    """Each guessed token is what will be written with the probability `right`. Some texts spell what they
    must. All are the same alone and together, with few rows a step, and with so few pages that some are set
    back."""
    spelled = [list(range(10 + i, 40 + i)) for i in range(3)]

    def answers() -> list[Answer]:
        guides = [*(Spelling(ids) for ids in spelled), *[None] * 15]
        return [
            Answer(i % 4, prompt, 30, ENDS, MODULES[i % 4], wants, guide=guides[i])
            for i, prompt in enumerate(prompts(18, seed=4))
        ]

    plain, of, draw = answers(), dict[Answer, Answer](), random.Random(8)
    wanted = [_chosen(run(writing(parts, "fp32", 20, guesses=False), [each])) for each in plain]

    def guess(answer: Answer, most: int, least: float) -> list[int]:
        assert 0 < least < 1
        answer._guesses = Guesses(0)
        rest = of[answer].ids[len(answer.ids) : -1][:most]
        return [id if draw.random() < right else draw.randrange(2, 150) for id in rest]

    monkeypatch.setattr(Answer, "guess", guess)
    for pages, step_rows in ((400, 64), (400, 9), (7, 64)):
        writer, found = writing(parts, "fp32", pages, step_rows), answers()
        of.update(zip(found, plain, strict=True))
        told = run(writer, found, seed=pages)
        assert [_chosen(each for each in told if each[0] is answer) for answer in found] == wanted
        assert [(each.ids, each.ended) for each in found] == [(each.ids, each.ended) for each in plain]
        assert (writer.set_back > 0) == (pages == 7)
        assert writer.arena.room == pages
        assert writer.true <= writer.guessed
        assert (writer.true == writer.guessed) == (right == 1)
        assert (writer.true > 9) == (right > 0)


def _chosen(told: Iterable[tuple[Answer, Chosen | None]]) -> list[Chosen | None]:
    return [chosen for _, chosen in told]


def test_a_step_has_few_guesses_beside_other_tenants_texts_and_none_in_a_full_one(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[tuple[int, float]] = []

    def guess(answer: Answer, most: int, least: float) -> list[int]:
        wanted.append((most, least))
        answer._guesses = Guesses(0)
        return [2] * min(most, 5)

    monkeypatch.setattr(Answer, "guess", guess)
    ran, run_step = list[int](), Writing._run

    def counted(writer: Writing, chunks: Mapping[Answer, int], between: Between | None) -> object:
        ran.append(sum(chunks.values()))
        return run_step(writer, chunks, between)

    monkeypatch.setattr(Writing, "_run", counted)
    for tenants, step_rows, expected in (
        ("aaaa", 64, [(15, worth(4)), (10, worth(4)), (5, worth(4))]),
        ("aaab", 64, [(4, 0.5)]),
        ("aaaa", 12, [(2, worth(4))]),
        ("aaaa", 7, []),
    ):
        writer = writing(parts, "plain", 40, step_rows)
        for i, tenant in enumerate(tenants):
            writer.add(Answer(i, [BEGIN, 2 + i], 30, tenant=tenant))
        with torch.inference_mode():
            while min(len(answer.ids) for answer in writer._answers) == 2:
                writer.step()
            wanted.clear()
            ran.clear()
            writer.step()
        assert wanted == expected
        assert ran == [4 + sum(min(most, 5) for most, _ in expected)]


def test_a_guess_is_charged_to_its_tenant_if_it_has_come_true(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = list[float]()

    class Noted(_NoShares):
        def charge(self, tenant: str, rows: float) -> None:
            charged.append(rows)

    (plain,) = answers = [Answer(0, [BEGIN, 2, 3], 12)]
    run(writing(parts, "plain", 40, guesses=False), answers)
    for wrong in (False, True):
        writer, answer = writing(parts, "plain", 40, shares=Noted()), Answer(0, [BEGIN, 2, 3], 12)

        def guess(answer: Answer, most: int, least: float) -> list[int]:
            answer._guesses = Guesses(0)
            return [id + wrong for id in plain.ids[len(answer.ids) : -1]]  # noqa: B023 (called in this turn)

        monkeypatch.setattr(Answer, "guess", guess)
        charged.clear()
        run(writer, [answer])
        assert answer.ids == plain.ids
        assert sum(charged) == len(plain.ids) - 1, "the last one is not read"
        assert charged == ([3] + [1] * 11 if wrong else [3, 11])


def test_one_that_leaves_frees_its_pages_and_one_that_cannot_end_is_refused(parts: Parts) -> None:
    writer = writing(parts, "plain", pages=4)
    with pytest.raises(
        InvalidInput, match=r"50 tokens of prompt and 16 to write need room for 65; .* for 64"
    ):
        writer.add(Answer(0, [BEGIN] * 50, 16))
    answer = Answer(0, [BEGIN, *range(2, 50)], 16)
    writer.add(answer)
    with torch.inference_mode():
        found = [chosen for _ in range(4) for _, chosen in writer.step()]
    assert [chosen and chosen.id for chosen in found] == answer.written
    assert len(found) == 4
    assert writer.arena.room == 0
    for _ in range(2):
        writer.remove(answer)
    assert (writer.arena.room, len(writer), writer.step()) == (4, 0, [])
    assert writer.arena.kept == 3
    writer.drop((0).__eq__)
    assert writer.arena.kept == 0


def test_nothing_is_kept_of_an_owner_that_went_while_its_sequences_ran_or_waited(parts: Parts) -> None:
    writer = writing(parts, "plain", pages=20)
    prompt = [BEGIN, *range(2, 2 + 2 * PAGE)]
    first, second, other = Answer("a", prompt, 20), Answer("a", prompt, 4), Answer("b", prompt, 4)
    writer.add(first)
    with torch.inference_mode():
        writer.step()
    writer.add(second)
    writer.drop("a".__eq__)
    run(writer, [other])
    assert [each.ended for each in (first, second, other)] == ["length"] * 3
    assert (writer.arena.kept, writer.arena.room) == (2, 20)
    run(writer, [Answer("a", prompt, 1)])
    assert writer.arena.kept == 4, "a later one of the same owner is kept again"


def test_what_the_first_step_found_is_told_also_of_a_sequence_that_was_set_back(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, prompt = writing(parts, "plain", pages=8, guesses=False), [BEGIN, *range(2, 55)]
    run(writer, [Answer("a", prompt[: 2 * PAGE + 1], 1)])
    begin, found = writer.arena.begin, list[int]()

    def counted(owner: Hashable, ids: Sequence[int]) -> list[int]:
        pages = begin(owner, ids)
        if owner == "a":
            found.append(len(pages) * PAGE)
        return pages

    monkeypatch.setattr(writer.arena, "begin", counted)
    older, answer = Answer("b", [BEGIN], 110), Answer("a", prompt, 40)
    for each in (older, answer):
        writer.add(each)
    assert answer.cached is None
    run(writer, [])
    assert writer.set_back > 0
    assert found[0] == 2 * PAGE
    assert set(found[1:]) - {2 * PAGE}, "each start found the same"
    assert (older.cached, answer.cached) == (0, 2 * PAGE)


@pytest.mark.parametrize("way", ["plain", "fp32", *DEVICE])
def test_a_sequence_whose_scores_are_no_numbers_fails_alone(parts: Parts, way: str) -> None:
    bad = module_of(1, ["o"], 2)
    for p in bad.parameters():
        p.fill_(torch.nan)
    answers = [Answer(i, prompt, 8, module=bad if i == 1 else None) for i, prompt in enumerate(prompts(4, 1))]
    writer = writing(parts, way, pages=20)
    run(writer, answers)
    assert [answer.ended for answer in answers] == ["length", "failed", "length", "length"]
    check(parts, [answer for answer in answers if answer.ended == "length"])
    assert writer.arena.room == 20


def test_what_cannot_be_written_is_refused(parts: Parts) -> None:
    writer = writing(parts, "fp32", pages=4)
    with pytest.raises(InvalidInput, match="no tokens"):
        writer.add(Answer(0, [], 3))
    with pytest.raises(InvalidInput, match="at least one token"):
        writer.add(Answer(0, [BEGIN], 0))
    with pytest.raises(ValueError, match="maps 128 to 128"):
        writer.add(Answer(0, [BEGIN], 1, module=TenantModule({"0-q": LowRankLayer(*torch.zeros(2, 4, 4))})))
    for wrong in ({"seed": -1}, {"seed": 1 << 64}, {"temperature": float("inf")}, {"top_p": 0}, {"min_p": 2}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must"):
            Sampling(**wrong)
    assert len(writer) == 0


@pytest.mark.parametrize("way", ["plain", "fp32", *DEVICE])
def test_a_short_prompt_runs_between_the_layers_of_a_long_ones_step(parts: Parts, way: str) -> None:
    draw = random.Random(3)
    long = [BEGIN, *draw.choices(range(2, 150), k=150)]

    def answers() -> list[Answer]:
        some = [Answer(0, long, 6, tenant="long", module=MODULES[1])]
        mine = enumerate(prompts(4, seed=9))
        return [*some, *(Answer(i, p, 6, tenant=f"short-{i % 2}", module=MODULES[i]) for i, p in mine)]

    writer, found = writing(parts, way, pages=60), answers()
    writer.add(found[0])
    waiting, told = found[1:], list[list[Answer]]()

    def between() -> None:
        if waiting:
            writer.add(waiting.pop(0))
        told.append([answer for answer, _ in writer.let_in()])

    with torch.inference_mode():
        assert writer.step(Between(between)) == []  # the long prompt is not read yet
        assert told == [[found[1]], [found[2]], [found[3]]]
        assert all(len(answer.written) == 1 for answer in found[1:4])
        while len(writer):
            if waiting:
                writer.add(waiting.pop(0))
            writer.step()
    alone = answers()
    for answer in alone:
        run(writing(parts, way, pages=60), [answer])
    assert [answer.ids for answer in found] == [answer.ids for answer in alone]
    assert writer.arena.room == 60


def test_a_short_prompt_runs_between_the_layers_beside_guesses_of_its_own_tenant(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writing(parts, "plain", pages=20)
    first, second = (Answer(i, [BEGIN, 3, 4], 20, tenant="same") for i in range(2))
    writer.add(first)
    told: list[list[Answer]] = []
    with torch.inference_mode():
        writer.step()
        first._guesses = Guesses(23)
        monkeypatch.setattr(Answer, "guess", lambda *_: [2])
        between = Between(lambda: told.append([answer for answer, _ in writer.let_in()]))
        plan = writer._plan
        monkeypatch.setattr(writer, "_plan", lambda: (plan(), writer.add(second))[0])
        writer.step(in_short=between)
    assert told[0] == [second]


def test_between_layers_nothing_of_a_running_step_is_set_back_and_no_more_rows_run_than_in_a_step(
    parts: Parts,
) -> None:
    writer = writing(parts, "plain", pages=5, step_rows=40)
    long = Answer(0, [BEGIN] * 70, 2, tenant="long")
    others = [Answer(i, [BEGIN] * 15, 2, tenant="other") for i in range(1, 4)]
    same = Answer(5, [BEGIN] * 3, 2, tenant="long")
    writer.add(long)
    told: list[list[Answer]] = []

    def between() -> None:
        if not told:
            for answer in (*others, same):
                writer.add(answer)
        told.append([answer for answer, _ in writer.let_in()])

    with torch.inference_mode():
        writer.step(Between(between))
        # Three pages are the long one's, which go on; a third short prompt would be more than 40 rows.
        assert told == [others[:2], [], []]
        assert (long.done, writer.set_back) == (40, 0)
        while len(writer):
            writer.step()
    assert [len(answer.written) for answer in (long, *others, same)] == [2] * 5


@pytest.mark.parametrize("way", ["plain", *available()])
def test_a_step_calls_between_its_layers_while_a_flag_is_up_and_writes_the_same(
    parts: Parts, way: str
) -> None:
    flag, calls = np.zeros(1, np.int64), list[int]()

    def call() -> None:
        calls.append(1)
        flag[0] = len(calls) < 3

    texts = []
    for up in (0, 1):
        writer = writing(parts, way, pages=60)
        answers = [Answer(i, p, 4, module=MODULES[i]) for i, p in enumerate(prompts(4, seed=9))]
        for answer in answers:
            writer.add(answer)
        with torch.inference_mode():
            while len(writer):
                flag[0] = up
                writer.step(in_short=Between(call, flag))
        texts.append([answer.ids for answer in answers])
        assert bool(calls) == bool(up)
    assert texts[0] == texts[1]


def test_tenants_get_equal_shares_of_steps(parts: Parts) -> None:
    """One tenant's thirty long prompts do not delay another's, nor do they wait for each other for ever."""

    writer = writing(parts, "plain", pages=200, step_rows=32, shares=Turns())
    draw = random.Random(5)
    many = [Answer("a", [BEGIN, *draw.choices(range(2, 150), k=60)], 8, tenant="a") for _ in range(30)]
    few = [Answer("b", [BEGIN, *draw.choices(range(2, 150), k=60)], 8, tenant="b") for _ in range(3)]
    for answer in many:
        writer.add(answer)
    with torch.inference_mode():
        for _ in range(5):
            writer.step()
        for answer in few:
            writer.add(answer)
        for _ in range(16):
            writer.step()
        assert all(answer.written for answer in few)
        assert sum(bool(answer.written) for answer in many) < 10
        while len(writer):
            writer.step()
    assert {len(answer.written) for answer in (*many, *few)} == {8}


@torch.inference_mode()
def first_tokens(writer: Writing, answers: Sequence[Answer]) -> list[int]:
    """Let sequences join, and return the number of the step in which each has its first token."""
    for answer in answers:
        writer.add(answer)
    found, step = dict[Answer, int](), 0
    while not found.keys() >= set(answers):
        step += 1
        for answer, _ in writer.step():
            found.setdefault(answer, step)
    return [found[answer] for answer in answers]


@pytest.mark.parametrize("most", [5, 60])
def test_prompts_are_read_however_many_texts_are_under_way(parts: Parts, most: int) -> None:
    """Of another tenant, and of the same one. The step has fewer rows than there are texts."""
    writer = writing(parts, "plain", 400, step_rows=16, shares=Turns())
    first_tokens(writer, [Answer(0, p, most + 60, tenant="one") for p in prompts(40, 1, longest=6)])
    two = Answer(1, [BEGIN] * 50, 2, tenant="two")
    assert first_tokens(writer, [two]) == [13], "the prompt has a quarter of each step"
    assert max(first_tokens(writer, [Answer(0, [BEGIN] * 10, 2, tenant="one")])) < 5
    run(writer, [])
    assert writer.arena.room == 400


@pytest.mark.parametrize("most", [40, 170])
def test_a_tenant_that_has_all_pages_gives_way_to_others(parts: Parts, most: int) -> None:
    """Their first tokens come at once, they are not set back, and all texts are those that are written
    alone."""

    def answers() -> tuple[list[Answer], ...]:
        return tuple(
            [Answer(tenant, p, n, tenant=tenant, sampling=DRAWN) for p in prompts(count, seed, 30)]
            for tenant, count, n, seed in (("one", 12, most, 1), ("two", 2, 20, 2), ("three", 2, 20, 3))
        )

    writer, (one, two, three) = writing(parts, "plain", 24, shares=Turns()), answers()
    for answer in one:
        writer.add(answer)
    with torch.inference_mode():
        while writer.arena.room > writer.arena.kept or writer.set_back < 2:
            writer.step()
    assert max(first_tokens(writer, two)) < 10
    assert max(first_tokens(writer, three)) < 10
    done = [(answer, answer.done) for answer in (*two, *three)]
    with torch.inference_mode():
        while any(answer.ended is None for answer, _ in done):
            writer.step()
            assert all(answer.done >= before or answer.ended for answer, before in done), "none is set back"
            done = [(answer, answer.done) for answer, _ in done]
    assert any(answer.ended is None for answer in one)
    run(writer, [])
    assert writer.arena.room == 24
    for found, alone in zip((one, two, three), answers(), strict=True):
        for answer in alone:
            run(writing(parts, "plain", 24), [answer])
        assert [answer.ids for answer in found] == [answer.ids for answer in alone]


def test_with_a_text_each_tenants_are_set_back_in_the_order_of_their_arrival(parts: Parts) -> None:
    """And a long one among others that come and go ends."""
    writer, draw = writing(parts, "plain", 12, shares=Turns()), random.Random(1)
    long = Answer(0, [BEGIN] * 60, 100, tenant="long")
    short = [
        Answer(i, [BEGIN] * draw.randrange(2, 60), draw.randrange(1, 40), tenant=f"t{i % 5}")
        for i in range(1, 120)
    ]
    before, steps = short[:20], 0
    waiting = short[20:]
    for answer in (*before, long):
        writer.add(answer)
    with torch.inference_mode():
        while long.ended is None:
            while waiting and len(writer) < 12:
                writer.add(waiting.pop())
            writer.step()
            steps += 1
    assert waiting, "others came until it had ended"
    run(writer, [])
    assert {answer.ended for answer in short if answer not in waiting} == {"length"}
