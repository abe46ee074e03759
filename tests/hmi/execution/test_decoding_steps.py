"""Step executors against the whole model: chunks, pages, modules, precisions, and company that changes
nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
import torch
from hmi_kernels.decoder import ops
from torch import Tensor

from hmi.errors import Unavailable
from hmi.execution.cuda.decoder import CudaDecoder
from hmi.execution.cuda.executor import DTYPES
from hmi.execution.cuda.layout import lora_size
from hmi.execution.decoding.base import PAGE, Part, StepExecutor
from hmi.execution.decoding.compiled import CompiledDecoder
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.decoding.scores import FEW, HostRow, matrix_of
from hmi.execution.precision import Precision, available
from hmi.model.network.decoder import Decoder, attend_before, rotary
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.generative_root import UpperDecoder, split_decoder
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from tests.hmi.labs.cuda_lab import device_of, ways_of

BEGIN, SPLIT, PAGES = 1, 1, 40
SITES = {"q": (128, 128), "k": (128, 64), "v": (128, 64), "o": (128, 128), "fo": (192, 128)}
SITES |= dict.fromkeys(("gate", "fi"), (128, 192))
ON_DEVICES = [
    pytest.param(f"{device} {rest}", marks=pytest.mark.gpu if device == "gpu" else ())
    for device in ("twin", "gpu")
    for rest in ("fp32 loop", "fp32 groups", "fp32 kernel", "bf16 kernel")
]
"""A device, a precision, and a way of computing modules."""
WAYS = ["plain", *available(), *ON_DEVICES]
NEAR = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.3, "int16": 0.02}
"""Of logits whose standard deviation is some 1.4."""


def tiny(kind: str) -> DecoderShape:
    return DecoderShape(
        vocab=150,
        dim=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        layers=4,
        ffn=192,
        positions=512,
        eps=1e-5,
        base=1e4,
        tied=kind != "qwen3",
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        kind=kind,
    )


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(0)
    made = Decoder(tiny(request.param)).eval().requires_grad_(False)
    for name, p in made.named_parameters():
        drawn = torch.randn_like(p)
        p.copy_(drawn * p.shape[1] ** -0.5 if p.dim() == 2 else 0.2 * drawn + ("bias" not in name))
    return made


def module_of(seed: int, sites: Sequence[str], rank: int) -> TenantModule:
    draw = torch.Generator().manual_seed(seed)

    def change(site: str) -> LowRankLayer:
        size_in, size_out = SITES[site]
        down = torch.randn(rank, size_in, generator=draw) * size_in**-0.5
        return LowRankLayer(down, torch.randn(size_out, rank, generator=draw) * 0.2 * rank**-0.5)

    made = TenantModule({f"{i}-{site}": change(site) for i in range(3) for site in sites})
    return made.eval().requires_grad_(False)


MODULES = [None, module_of(1, list(SITES), 8), module_of(2, ["q", "v"], 3), module_of(3, ["k", "gate"], 16)]
MODULES.append(module_of(4, ["q", "v", "o", "fi", "fo"], 2))


def executor_of(way: str, upper: UpperDecoder, pages: int, *, slots: int = 64, seed: int = 0) -> StepExecutor:
    """The executor of one of `WAYS`. slots: on a device, so many LoRAs of rank 8 in all layers."""
    if way == "plain":
        return PlainDecoder(upper, pages)
    if " " not in way:
        return CompiledDecoder(upper, pages, cast(Precision, way))
    device, precision, name = way.split()
    there = device_of(device, seed)
    size = slots * lora_size(8, len(upper.layers), upper.shape) * DTYPES[precision].itemsize
    return CudaDecoder(upper, pages, precision, there, slot_bytes=size, ways=ways_of(name, there))


def near(way: str) -> float:
    return next((x for precision, x in NEAR.items() if precision in way), NEAR["fp32"])


@dataclass
class Told:
    """A sequence, and how far it has run."""

    ids: list[int]
    module: TenantModule | None
    pages: list[int]
    done: int = 0
    scores: list[Tensor] = field(default_factory=list)


class Lab:
    """A decoder that is split, with an executor and pages that are handed out in no order."""

    def __init__(self, decoder: Decoder, way: str) -> None:
        self.decoder, self.way = decoder, way
        self.lower, upper = split_decoder(decoder, SPLIT, BEGIN, 2)
        for part in (self.lower, upper):
            part.requires_grad_(False)
        self.upper = upper
        self.executor = executor_of(way, upper, PAGES)
        self.free = random.Random(1).sample(range(PAGES), PAGES)

    def told(self, ids: list[int], module: TenantModule | None) -> Told:
        count = -(-len(ids) // PAGE)
        pages, self.free = self.free[:count], self.free[count:]
        return Told(ids, module, pages)

    def step(self, work: Sequence[tuple[Told, int]]) -> None:
        """Run the next tokens of sequences, so many of each."""
        rows, parts = [], []
        for told, count in work:
            rows.append(self.lower(torch.tensor([told.ids]))[0, told.done : told.done + count])
            parts.append(Part(told.done, count, told.pages, told.module, scored=1))
            told.done += count
        given = self.executor.step(torch.cat(rows), parts)
        vocab, found = self.decoder.shape.vocab, matrix_of(given)
        assert len(found) == len(work)
        assert (found[:, vocab:] == -torch.inf).all()
        found = found[:, :vocab]
        for (told, _), scores in zip(work, found, strict=True):
            told.scores.append(scores)

    def exact(self, told: Told) -> Tensor:
        """The scores after each token, by the plain layers: [tokens, vocab]."""
        x = self.lower(torch.tensor([told.ids]))
        shape = self.decoder.shape
        turns = rotary(len(told.ids), shape.head_dim, shape.base)
        for i, layer in enumerate(self.upper.layers):
            delta = {} if told.module is None else {"delta": told.module.delta(i)}
            x = layer(x, turns, attend_before, **delta)
        return self.upper.logits(x)[0]


def ids_of(seed: int, length: int) -> list[int]:
    return [BEGIN, *random.Random(seed).choices(range(2, 150), k=length - 1)]


@pytest.mark.parametrize("way", WAYS)
def test_chunks_of_any_length_give_the_whole_models_scores(decoder: Decoder, way: str) -> None:
    lab, draw = Lab(decoder, way), random.Random(5)
    running = [lab.told(ids_of(i, 10 + 9 * i), MODULES[i % 5]) for i in range(8)]
    ends: dict[int, list[int]] = {i: [] for i in range(8)}
    with torch.inference_mode():
        while any(told.done < len(told.ids) for told in running):
            some = [t for t in running if t.done < len(t.ids) and draw.random() < 0.7]
            work = [(t, min(draw.choice((1, 1, 1, 5, 17, 40)), len(t.ids) - t.done)) for t in some]
            if work:
                lab.step(work)
                for told, _ in work:
                    ends[running.index(told)].append(told.done - 1)
        for i, told in enumerate(running):
            want, got = lab.exact(told)[ends[i]], torch.stack(told.scores)
            assert (got[:, 0] == -torch.inf).all()
            assert (got[:, 1:] - want[:, 1:]).abs().max() < near(way)
        running[1].module = None
        assert (lab.exact(running[1])[ends[1]] - torch.stack(running[1].scores))[:, 1:].abs().max() > 0.5


@pytest.mark.parametrize("way", WAYS)
def test_a_module_as_it_is_stored_gives_the_scores_of_its_fp32_copy(decoder: Decoder, way: str) -> None:
    lab = Lab(decoder, way)
    stored = module_of(1, list(SITES), 8).half()
    lab.executor.prepare(stored)
    told = lab.told(ids_of(1, 20), stored)
    with torch.inference_mode():
        lab.step([(told, 20)])
        told.module = copy.deepcopy(stored).float()
        assert (lab.exact(told)[19] - told.scores[0])[1:].abs().max() < near(way)


@pytest.mark.parametrize("module", [MODULES[1], MODULES[4]], ids=["wide", "narrow"])
@pytest.mark.parametrize("way", available())
def test_a_sequence_has_the_same_bits_in_any_company(
    decoder: Decoder, way: str, module: TenantModule
) -> None:
    alone, crowd = Lab(decoder, way), Lab(decoder, way)
    ids = ids_of(1, 60)
    one, same = alone.told(ids, module), crowd.told(ids, module)
    others = [crowd.told(ids_of(10 + i, 80), MODULES[i % 5]) for i in range(6)]
    with torch.inference_mode():
        alone.step([(one, 60)])
        for count in (1, 16, 3, 1, 1, 30, 7, 1):
            crowd.step([(others[0], 2), (others[1], 9), (same, count), *((o, 1) for o in others[2:])])
    assert torch.equal(one.scores[-1], same.scores[-1])


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_in_free_pages_is_never_read(decoder: Decoder, way: str) -> None:
    lab = Lab(decoder, way)
    if isinstance(lab.executor, PlainDecoder | CudaDecoder):
        lab.executor._kept[:, :, :-PAGE].fill_(torch.nan)
    else:
        assert isinstance(lab.executor, CompiledDecoder)
        lab.executor._kept._memory[:] = 255  # not-a-number in float32 and bfloat16
    told = lab.told(ids_of(3, 37), MODULES[2])
    with torch.inference_mode():
        lab.step([(told, 20)])
        lab.step([(told, 17)])
        want = lab.exact(told)[[19, 36]]
        assert (torch.stack(told.scores)[:, 1:] - want[:, 1:]).abs().max() < near(way)


def test_memory_is_not_taken_anew_at_each_longest_length() -> None:
    layers = CompiledDecoder(split_decoder(Decoder(tiny("llama")), SPLIT, BEGIN, 2)[1], 1, "fp32")._layers
    room, table, taken = ops.Room(), np.arange(20), list[object]()
    for length in range(1, 301):  # one token a step
        room.address(layers, ops.StepRows([1], [length - 1], [table], [None]))
        if not any(room._memory is memory for memory in taken):
            taken.append(room._memory)
    assert len(taken) == 10, "once for each power of two up to 512"


@pytest.mark.parametrize("way", ["plain", "fp32", *ON_DEVICES])
def test_a_module_that_is_not_of_the_layers_is_refused(decoder: Decoder, way: str) -> None:
    executor = executor_of(way, split_decoder(decoder, SPLIT, BEGIN, 2)[1], 1)
    executor.prepare(MODULES[1])  # type: ignore[arg-type]
    down, up = torch.zeros(4, 128), torch.zeros(128, 4)
    wrong = {
        "0-q .* maps 128 to 128": {"0-q": LowRankLayer(down[:, :96], up)},
        "1-k .* maps 128 to 64": {"1-k": LowRankLayer(down, up)},
        "2-o .* maps 128 to 128": {"2-o": LowRankLayer(down, up[:1])},
        "0-fo .* maps 192 to 128": {"0-fo": LowRankLayer(torch.zeros(4, 192), up[:, :3])},
        "no site 3-q": {"3-q": LowRankLayer(down, up)},
        "must be a LoRA": {"0-q": LowRankLayer(down, up, torch.zeros(4), torch.zeros(128))},
    }
    for why, sites in wrong.items():
        with pytest.raises(ValueError, match=why):
            executor.prepare(TenantModule(sites))


@pytest.mark.parametrize("way", [w for w in ON_DEVICES if "bf16" not in str(w)])
def test_a_step_whose_modules_need_more_than_all_slots_runs_in_several(decoder: Decoder, way: str) -> None:
    lab = Lab(decoder, way)
    lab.executor = executor_of(way, lab.upper, PAGES, slots=2)
    assert isinstance(lab.executor, CudaDecoder)
    modules = [module_of(i, list(SITES), 7) for i in range(5)]
    told = [lab.told(ids_of(i, 20), module) for i, module in enumerate(modules)]
    with torch.inference_mode():
        lab.step([(each, 20 - i) for i, each in enumerate(told)])
        for i, each in enumerate(told):
            assert (each.scores[0] - lab.exact(each)[19 - i])[1:].abs().max() < near(way)
    assert lab.executor.slots.held() == 2
    large = lab.told(ids_of(9, 3), module_of(9, list(SITES), 40))
    with pytest.raises(Unavailable, match="raise HMI_DEVICE_BYTES"):
        lab.step([(large, 3)])


@pytest.mark.parametrize("way", [w for w in ON_DEVICES if "loop" in str(w)])
def test_the_best_words_on_a_device_are_those_of_all_scores(decoder: Decoder, way: str) -> None:
    lab, scales = Lab(decoder, way), (1.0, 0.5, 2.0, 1.0)
    told = [lab.told(ids_of(i, 9), None) for i in range(4)]
    x = torch.cat([lab.lower(torch.tensor([each.ids]))[0] for each in told])
    x[-1] = torch.nan
    parts = [Part(0, 9, each.pages, None, i != 1, scales[i]) for i, each in enumerate(told)]
    rows = lab.executor.step(x, parts)
    assert len(rows) == 3
    for row, scale in zip(rows[:2], (1.0, 2.0), strict=True):
        for count, by in ((1, 1.0), (FEW, scale), (FEW + 9, scale), (5, 0.7)):
            want, got = HostRow(row.whole()).best(count, by), row.best(count, by)
            assert got[0].tolist() == want[0].tolist()
            assert got[1].tolist() == want[1].tolist()
            assert got[2] == pytest.approx(want[2], abs=1e-4)
        assert [row.of(word) for word in range(150)] == row.whole()[:150].tolist()
    assert rows[2].best(FEW)[0].tolist() == []


@pytest.mark.gpu
def test_a_step_waits_for_nothing_but_its_scores(decoder: Decoder) -> None:
    """torch raises at any operation that would make the host wait, other than the events of `Event.wait`."""
    lab = Lab(decoder, "gpu fp32 groups")
    told = [lab.told(ids_of(i, 30), module) for i, module in enumerate(MODULES)]
    for count in (20, 1, 9):
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode():
                lab.step([(each, count) for each in told])
        finally:
            torch.cuda.set_sync_debug_mode("default")
