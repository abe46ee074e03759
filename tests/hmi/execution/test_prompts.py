"""Prompts stand between [CLS] and the tokens of a text, before each layer, in every executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from hmi.errors import Damaged
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.execution.cuda.twin import Twin
from hmi.execution.fused import FusedExecutor
from hmi.execution.packed import PackedExecutor
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule
from hmi.model.tenant.prompts import check_prompts, copied_prompts
from hmi.stages.token_adaptation.prompts import PromptHook
from hmi.training.fit.backbones import Examples, Hidden, ModuleBackbone, PromptBackbone
from tests.hmi.execution.test_fused import BERT, DEPTH, MPNET, module, upper
from tests.hmi.labs.cuda_lab import executor as on_device
from tests.hmi.labs.merging_lab import hook_of

LENGTHS = (5, 30, 1, 14, 2)
WHICH = {0: 2, 2: 8, 3: 2, 4: 2}
"""The number of prompts of each text; text 1 has none, texts 0 and 4 share theirs."""
Reads = Literal["cls", "rows"]


def texts(shape: EncoderShape) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(length, shape.dim, generator=draw) for length in LENGTHS]


def prompts(shape: EncoderShape) -> dict[int, Tensor]:
    draw = torch.Generator().manual_seed(2)
    made = {t: torch.randn(DEPTH, count, shape.dim, generator=draw) for t, count in WHICH.items()}
    return {**made, 4: made[0]}


def modules(shape: EncoderShape) -> list[TenantModule | None]:
    a, b = module(shape, "lora", 3), module(shape, "parallel", 4)
    return [a, a, b, None, a]


def make(name: str, shape: EncoderShape) -> Any:
    if name == "twin":
        return on_device(Twin(3), shape)
    return (
        PackedExecutor(upper(shape), shape)
        if name == "packed"
        else FusedExecutor(upper(shape), shape, "fp32")
    )


def ran(
    executor: Any,
    shape: EncoderShape,
    which: Sequence[int],
    reads: Reads,
    hooks: bool = True,
    further: Sequence[Hook] = (),
) -> dict[int, tuple[Tensor, Tensor]]:
    """The last rows and those before the last layer, by text, of a batch of these texts."""
    x, every, mine = texts(shape), prompts(shape), modules(shape)
    offsets = torch.tensor([0, *(len(x[t]) for t in which)]).cumsum(0).tolist()
    given = {i: every[t] for i, t in enumerate(which) if t in every}
    rows = Rows.packed(torch.cat([x[t] for t in which]), offsets)
    key, hook = BatchKey(("", ""), reads, exact=False), PromptHook(given, DEPTH)
    found = executor.run(key, rows, [mine[t] for t in which], [*([hook] if hooks else []), *further])
    out: dict[int, tuple[Tensor, Tensor]] = {}
    for left in found:
        assert isinstance(left, Left)
        for i, at in enumerate(left.texts):
            a, b = left.offsets[i], left.offsets[i + 1]
            last = left.last[i] if reads == "cls" else left.last[a:b]
            out[which[at]] = last.clone(), left.before[a:b].clone()
    return out


def trained(shape: EncoderShape, text: int, reads: Reads) -> Hidden:
    """The same of one text, padded, as training computes it."""
    x = texts(shape)[text]
    mine = modules(shape)[text] or TenantModule({})
    backbone = ModuleBackbone(upper(shape), mine, shape.heads)
    one = Examples([len(x)], [[0] * len(x)], lambda rows: [x], [[]])
    made = prompts(shape)
    used = PromptBackbone(backbone, made[text]) if text in made else backbone
    with torch.no_grad():
        return used(one, [0], cls_only=reads == "cls", dropout=0.0)


@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
@pytest.mark.parametrize("name", ["packed", "fused", "twin"])
@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_a_mixed_batch_gives_what_each_text_alone_gives_in_training(
    name: str, shape: EncoderShape, reads: Reads
) -> None:
    found = ran(make(name, shape), shape, range(5), reads)
    for text, (last, before) in found.items():
        wanted = trained(shape, text, reads)
        torch.testing.assert_close(before, wanted.before[0], atol=1e-4, rtol=1e-4)
        mine = wanted.last[0, 0] if reads == "cls" else wanted.last[0]
        torch.testing.assert_close(last, mine, atol=1e-4, rtol=1e-4)
    assert sorted(found) == [*range(5)]


@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_alone_equals_batched_and_others_are_untouched_to_the_bit(reads: Reads) -> None:
    executor = make("fused", MPNET)
    together, plain = (ran(executor, MPNET, range(5), reads, hooks) for hooks in (True, False))
    for text, found in together.items():
        alone = ran(executor, MPNET, [text], reads)[text]
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found, plain[text], strict=True)) == (text not in WHICH)


@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_a_text_has_prompts_or_is_merged(reads: Reads) -> None:
    executor, gammas = make("fused", BERT), {1: -35, 3: -35}

    def merging() -> list[Hook]:
        return [hook_of(LENGTHS, gammas)]

    both = ran(executor, BERT, range(5), reads, further=merging())
    prompted, merged = (
        ran(executor, BERT, range(5), reads, hooks, further)
        for hooks, further in ((True, ()), (False, merging()))
    )
    for text, found in both.items():
        wanted = (merged if text == 1 else prompted)[text]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not torch.equal(merged[1][0], prompted[1][0])


def test_each_layer_reads_fresh_prompts_and_no_tensor_is_changed_in_place() -> None:
    hook, every = PromptHook(prompts(BERT), DEPTH), prompts(BERT)
    x = torch.cat(texts(BERT))
    rows = Rows.packed(x, torch.tensor([0, *LENGTHS]).cumsum(0).tolist())
    for layer in range(DEPTH):
        given, before = rows, rows.x.clone()
        rows, left = hook(layer, rows)
        assert left is None
        assert torch.equal(given.x, before)
        assert rows.x is not given.x
        for text, (a, b) in zip(rows.texts, rows.spans(), strict=True):
            count = WHICH.get(text, 0)
            assert b - a == LENGTHS[text] + count
            assert not count or torch.equal(rows.x[a + 1 : a + 1 + count], every[text][layer])
        assert torch.equal(rows.by_token(rows.x), x), "tokens' rows stay, in their order"
        firsts = torch.tensor(rows.offsets[:-1])
        assert torch.equal(rows.x[firsts], torch.stack([each[0] for each in texts(BERT)]))


def test_rows_that_are_merged_already_keep_their_map_and_their_sizes() -> None:
    x = torch.arange(5.0)[:, None].expand(5, BERT.dim).contiguous()
    source, size = torch.tensor([0, 1, 1, 2, 3, 4]), torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0])
    rows, _ = PromptHook({1: prompts(BERT)[0]}, DEPTH)(0, Rows(x, [0, 3, 5], [0, 1], source, size))
    assert rows.offsets == [0, 3, 7]
    assert rows.source is not None
    assert rows.source.tolist() == [0, 1, 1, 2, 3, 6]
    assert rows.size is not None
    assert rows.size.tolist() == [1, 2, 1, 1, 1, 1, 1]
    assert torch.equal(rows.by_token(rows.x), x[source])


def test_a_batch_in_which_tokens_were_dropped_gets_no_prompts() -> None:
    rows = Rows(torch.zeros(3, BERT.dim), [0, 3], [0], tokens=torch.tensor([0, 2, 3]))
    hook = PromptHook({0: prompts(BERT)[0]}, DEPTH)
    assert all(hook(layer, rows)[0] is rows for layer in range(DEPTH))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("2", torch.zeros(3, 4, 8), r"prompts\.2 is \[3, 4, 8\], and not \[layers, 2, dim\]"),
        ("2", torch.zeros(2, 8), r"prompts\.2 is \[2, 8\]"),
        ("two", torch.zeros(3, 2, 8), r"prompts\.two"),
        ("0", torch.zeros(3, 0, 8), r"prompts\.0"),
        ("2", torch.full((3, 2, 8), torch.nan), r"prompts\.2 has values that are no finite"),
        ("2", torch.zeros(3, 2, 8, dtype=torch.int8), r"prompts\.2 has values"),
    ],
)
def test_a_tensor_that_is_no_set_of_prompts_is_refused(name: str, tensor: Tensor, words: str) -> None:
    with pytest.raises(Damaged, match=words):
        copied_prompts({name: tensor})


def test_prompts_of_another_root_are_refused() -> None:
    found = copied_prompts({"2": torch.ones(3, 2, 8).half()})
    assert found[2].dtype == torch.float32
    check_prompts(found, 3, 8)
    for layers, dim in ((4, 8), (3, 16)):
        with pytest.raises(Damaged, match=f"the root has {layers} upper layers of {dim}.*hmi model tokens"):
            check_prompts(found, layers, dim)
