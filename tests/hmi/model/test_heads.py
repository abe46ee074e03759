"""Heads with queries against a slow form, and heads that read less than the one they start from."""

from __future__ import annotations

from dataclasses import replace

import torch

from hmi.model.sources.root import Root
from hmi.model.tenant.heads import QUERIES, Head, head_from, head_queries
from hmi.training.fit.trainer import tenant_trainer
from tests.hmi.training.test_training import MODULE, PLAN, examples, quiet


def test_queries_attend_to_tokens_only() -> None:
    g = torch.Generator().manual_seed(0)
    head = Head(6, 3, queries=2, dim=5)
    before, read = torch.randn(4, 7, 5, generator=g), torch.randn(4, 6, generator=g)
    lengths = [7, 1, 3, 5]
    mask = torch.arange(7)[None] < torch.tensor(lengths)[:, None]
    assert head.query is not None
    with torch.no_grad():
        head.query.mul_(100)
        got = head.with_attended(read, before, mask)
    for i, length in enumerate(lengths):
        rows, parts = before[i, :length], [read[i]]
        for query in head.query:
            weights = torch.stack([(row * query).sum().exp() for row in rows])
            parts.append(
                sum((w / weights.sum() * row for w, row in zip(weights, rows, strict=True)), torch.zeros(5))
            )
        torch.testing.assert_close(got[i], torch.cat(parts))


def test_a_head_comes_back_from_its_tensors() -> None:
    for head in (Head(6, 3), Head(6, 3, queries=2, dim=5)):
        back = head_from(head.state_dict())
        assert all(torch.equal(v, back.state_dict()[k]) for k, v in head.state_dict().items())


def test_what_reads_cls_for_few_labels_has_queries() -> None:
    assert head_queries("cls", 2) == head_queries("cls", 32) == QUERIES
    assert head_queries("cls", 33) == head_queries("compare", 2) == head_queries("rows", 2) == 0


def test_an_earlier_head_goes_on_where_it_was(tiny_root: Root) -> None:
    train = examples(tiny_root, 0)
    earlier = tenant_trainer(tiny_root, MODULE, PLAN, train)
    list(earlier.epochs(quiet))
    later = tenant_trainer(tiny_root, MODULE, replace(PLAN, queries=QUERIES), train)
    later.start_from(replace(earlier.state(), lexical={"table": torch.zeros(2, 2)}))
    for a, b in zip(earlier.predict(train), later.predict(train), strict=True):
        torch.testing.assert_close(a, b)


def test_training_learns_queries(tiny_root: Root) -> None:
    trainer = tenant_trainer(tiny_root, MODULE, replace(PLAN, queries=QUERIES), examples(tiny_root, 0))
    fresh = trainer.state().head["query"]
    list(trainer.epochs(quiet))
    assert not torch.equal(fresh, trainer.state().head["query"])
    test = examples(tiny_root, 1)
    hits = sum(int(x.argmax()) == t[0] for x, t in zip(trainer.predict(test), test.targets, strict=True))
    assert hits >= 54
