"""The hook of a cascade inside one root, over real executors, against a slow run of each text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hmi.core import Cascade, ModelId, Objective, Offer
from hmi.execution import BatchKey, Executor, Rows
from hmi.execution.base import Output
from hmi.execution.batch import offsets_of
from hmi.execution.fused import FusedExecutor
from hmi.execution.packed import PackedExecutor
from hmi.model.network.encoder import EncoderLayer, attend_padded
from hmi.model.network.shape import EncoderShape
from hmi.model.tasks import task_of
from hmi.model.tenant.calibration import Floats, probabilities
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.batching import pad_rows
from hmi.stages.base import StageBatch, Text
from hmi.stages.cascade.attention import from_first
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.gate import CLOSED_SHARE
from hmi.stages.cascade.hook import Concern, Decided, InsideHook, lost
from hmi.stages.cascade.pruning import kept_tokens
from hmi.stages.cascade.standing import VersionEvidence
from hmi.stages.cascade.watched import CascadeEvidence
from hmi.stages.draw import draw
from hmi.stages.early_exit.account import Count, Phase
from hmi.stages.owed import Owed
from tests.hmi.execution.test_fused import BERT, DEPTH, MPNET, module, upper

LENGTHS, LABELS, SITE = (5, 9, 1, 24, 13, 2, 30, 17), ("a", "b", "c"), 1
OFFER = Offer(cut_off=0.35, slope=4.0, weight=0.6, accuracy=0.9, agreement=0.99, mean_ms=1.0, returned=0.5)
CASCADE = Cascade(
    site=SITE,
    temperature=0.8,
    large_temperature=1.3,
    version=1,
    rows=100,
    large_accuracy=0.9,
    large_ms=5.0,
    offers=(),
)


@dataclass
class World:
    """A batch of texts of two tenants and of one without a module, with ramps and heads that read [CLS]."""

    layers: nn.ModuleList
    shape: EncoderShape
    executor: Executor
    rows: list[Tensor]
    modules: list[TenantModule | None]
    ramp: Tensor
    head: Tensor

    def batch(self, texts: Sequence[int]) -> StageBatch:
        """The batch of these texts."""

        def ramp(site: int, rows: Rows, wanted: Sequence[int]) -> list[Tensor | None]:
            at = dict(zip(rows.texts, rows.offsets, strict=False))
            return [self.ramp @ rows.x[at[text]] for text in wanted]

        def attention(layer: int, rows: Rows, wanted: Sequence[int]) -> list[Floats]:
            at = dict(zip(rows.texts, rows.spans(), strict=True))
            return [
                from_first(
                    self.layer(layer), self.shape.heads, rows.x[slice(*at[t])], self.modules[texts[t]], layer
                )
                for t in wanted
            ]

        key = BatchKey(("tiny", "1"), "cls", exact=False)
        about = [self.text(t) for t in texts]
        return StageBatch(key, DEPTH, about, ramp, [one.objective for one in about], attention)

    def layer(self, index: int) -> EncoderLayer:
        layer = self.layers[index]
        assert isinstance(layer, EncoderLayer)
        return layer

    def text(self, text: int) -> Text:
        length = LENGTHS[text]
        second = max(2, length // 2)
        words = [-1 if i in (0, second, length - 1) else i // 2 for i in range(length)]
        version: Any = type("Version", (), {})()
        return Text(
            model=ModelId("acme", "m"),
            version=version,
            objective=Objective(agreement=0.9),
            cascade=None,
            task=task_of("classification", LABELS),
            id=f"request-{text}",
            nonce=f"request-{text}",
            tokens=length,
            whole=True,
            merged=lambda output: output,
            words=words,
            segments=[int(i > second) for i in range(length)],
        )

    def run(
        self,
        texts: Sequence[int],
        offer: Offer | None,
        stands: VersionEvidence | None = None,
        owed: Owed[Decided] | None = None,
    ) -> dict[int, tuple[str, Tensor]]:
        """The batch as the engine runs it: why each text ended, and its output."""
        batch, hooks = self.batch(texts), []
        if offer is not None:
            used = opened(offer) if stands is None else stands
            concerns = {i: Concern(t, used, CASCADE) for i, t in enumerate(batch.texts)}
            hooks = [InsideHook(batch, concerns, owed)]
        lengths = [LENGTHS[t] for t in texts]
        packed = Rows.packed(torch.cat([self.rows[t] for t in texts]), offsets_of(lengths))
        found: dict[int, tuple[str, Tensor]] = {}
        for left in self.executor.run(batch.key, packed, [self.modules[t] for t in texts], hooks):
            outputs: list[Output] = (
                [self.head @ row for row in left.last] if left.outputs is None else list(left.outputs)
            )
            for hook in hooks if left.why == "end" else []:
                outputs = hook.ended(left.texts, outputs)
            for text, output in zip(left.texts, outputs, strict=True):
                assert isinstance(output, Tensor)
                found.setdefault(texts[text], (left.why, output))
        assert set(found) == set(texts)
        return found

    def slow(self, text: int, offer: Offer) -> tuple[str, Tensor]:
        """The reference: one text, padded form, layer by layer."""
        x, module, about = self.rows[text], self.modules[text], self.text(text)
        for index in range(len(self.layers)):
            if index == SITE:
                output = self.ramp @ x[0]
                small = probabilities(output.double().numpy(), 0.8)
                share = float(share_large(small.max(), Dispatcher(offer.cut_off, offer.slope)))
                if not goes_on(about.id, share):
                    return "exit", output * (1.3 / 0.8)
                if offer.pruning:
                    seen = from_first(self.layer(index), self.shape.heads, x, module, index)
                    x = x[torch.from_numpy(kept_tokens(seen, about.words, about.segments, offer.pruning))]
            padded, mask = pad_rows([x])
            attend = attend_padded(mask, self.shape.heads)
            layer = self.layer(index)
            x = (layer(padded, attend) if module is None else layer(padded, attend, module.delta(index)))[0]
        large = probabilities((self.head @ x[0]).double().numpy(), 1.3)
        mixture = offer.weight * large + (1 - offer.weight) * small
        return "end", torch.from_numpy(1.3 * np.log(mixture)).float()


def standing(offer: Offer, agreement: float = 0.9, share: float | None = None) -> VersionEvidence:
    """The standing of a cascade with this offer, which audits this share of texts (None: what it chooses)."""
    made = CascadeEvidence(CASCADE.model_copy(update={"offers": (offer,)}), Objective(agreement=agreement))
    if share is not None:
        audit(made, share)
    return VersionEvidence(made)


def opened(offer: Offer, share: float = 1e-9) -> VersionEvidence:
    """A standing whose gate is open and whose stream has earned much."""
    return used(standing(offer, 0.6, 0.5), share)


def used(made: VersionEvidence, share: float = 1e-9) -> VersionEvidence:
    """The same standing with its gate opened."""
    for i in range(5000):
        begun = made.begin(f"earlier-{i}")
        assert begun is not None
        if begun.ticket.in_force:
            made.abandon(begun)
            break
        made.record(begun, disagrees=[False])
    audit(made._watched, share)
    made._watched.trial.account.texts = 10**12
    return made


def audit(made: CascadeEvidence, share: float) -> None:
    """Let this share of texts be audited from here on."""
    account = made.trial.account
    account.phases, account.phase, account.used, account.counts = (Phase(share, 1.0),), 0, 0, [Count()]


@pytest.fixture(params=["packed", "fused", "mpnet"])
def world(request: pytest.FixtureRequest) -> World:
    shape = MPNET if request.param == "mpnet" else BERT
    layers, g = upper(shape), torch.Generator().manual_seed(1)
    executor: Executor = (
        PackedExecutor(layers, shape) if request.param == "packed" else FusedExecutor(layers, shape, "fp32")
    )
    a, b = module(shape, "lora", 4), module(shape, "sequential", 3)
    return World(
        layers,
        shape,
        executor,
        [torch.randn(n, shape.dim, generator=g) for n in LENGTHS],
        [a, a, a, None, None, b, b, b],
        torch.randn(len(LABELS), shape.dim, generator=g) * 0.4,
        torch.randn(len(LABELS), shape.dim, generator=g) * 0.4,
    )


ALL = range(len(LENGTHS))


@pytest.mark.parametrize("pruning", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("slope", [0.0, 4.0])
def test_every_text_is_as_alone_in_padded_form(world: World, pruning: float, slope: float) -> None:
    offer = replace_offer(pruning=pruning, slope=slope)
    together = world.run(ALL, offer)
    assert {why for why, _ in together.values()} == {"exit", "end"}
    for text, (why, output) in together.items():
        wanted = world.slow(text, offer)
        assert why == wanted[0]
        torch.testing.assert_close(output, wanted[1], rtol=1e-4, atol=1e-4)
        alone = world.run([text], offer)[text]
        torch.testing.assert_close(alone[1], output, rtol=1e-5, atol=1e-5)


def replace_offer(**changes: float) -> Offer:
    return OFFER.model_copy(update=changes)


def test_if_all_texts_go_on_a_weight_of_1_gives_the_large_levels_bits(world: World) -> None:
    plain, cascade = world.run(ALL, None), world.run(ALL, replace_offer(cut_off=0.9999, weight=1.0))
    for text in ALL:
        assert cascade[text][0] == "end"
        assert torch.equal(cascade[text][1], plain[text][1])


def test_a_weight_of_0_gives_the_ramps_output(world: World) -> None:
    for text, (why, output) in world.run(ALL, replace_offer(cut_off=0.9999, weight=0.0)).items():
        assert why == "end"
        ramp = world.ramp @ first_layer(world, text)[0]
        torch.testing.assert_close(output, ramp * (1.3 / 0.8), rtol=1e-4, atol=1e-4)


def first_layer(world: World, text: int) -> Tensor:
    """The rows that enter the site."""
    padded, mask = pad_rows([world.rows[text]])
    module, attend = world.modules[text], attend_padded(mask, world.shape.heads)
    layer = world.layer(0)
    out: Tensor = (layer(padded, attend) if module is None else layer(padded, attend, module.delta(0)))[0]
    return out


def test_while_the_gate_is_closed_answers_have_the_full_models_bits(world: World) -> None:
    """Without pruning every text is an audit then."""
    stands = standing(OFFER)
    plain, cascade = world.run(ALL, None), world.run(ALL, OFFER, stands)
    assert all(torch.equal(cascade[t][1], plain[t][1]) and cascade[t][0] == "end" for t in ALL)
    wrong = sum(int(world.slow(t, OFFER)[1].argmax() != plain[t][1].argmax()) for t in ALL)
    assert (stands.report.audited, stands.report.disagreed) == (len(LENGTHS), wrong)
    assert stands.report.state == "testing"


def test_an_audit_with_pruning_reads_the_text_twice(world: World) -> None:
    """Whole for its answer, and without the words for the audit. Only texts drawn for an audit are."""
    offer = replace_offer(pruning=1.0, cut_off=0.999)
    plain = world.run(ALL, None)
    stands = standing(offer)
    drawn = [t for t in ALL if draw("audit", world.text(t).id) < CLOSED_SHARE]
    wrong = sum(int(world.slow(t, offer)[1].argmax() != plain[t][1].argmax()) for t in drawn)
    cascade = world.run(ALL, offer, stands)
    for text in ALL:
        torch.testing.assert_close(cascade[text][1], plain[text][1], rtol=1e-5, atol=1e-5)
    assert (stands.report.audited, stands.report.disagreed) == (len(drawn), wrong)
    assert 0 < len(drawn) < len(LENGTHS)


def test_audits_of_an_open_gate_have_their_answer_and_run_on(world: World) -> None:
    stands, plain, slow = (
        opened(OFFER, share=1.0),
        world.run(ALL, None),
        {t: world.slow(t, OFFER) for t in ALL},
    )
    before, returned = stands.report.audited, stands.report.returned
    cascade = world.run(ALL, OFFER, stands)
    for text in ALL:
        assert cascade[text][0] == slow[text][0]
        torch.testing.assert_close(cascade[text][1], slow[text][1], rtol=1e-4, atol=1e-4)
    assert stands.report.audited == before + len(LENGTHS)
    assert stands.report.returned == returned + sum(why == "exit" for why, _ in slow.values())
    wrong = sum(int(output.argmax() != plain[t][1].argmax()) for t, (_, output) in slow.items())
    assert (stands._watched.trial.under_way, stands.report.disagreed) == (0, wrong)


def test_texts_that_were_followed_are_counted_by_level(world: World) -> None:
    stands = opened(OFFER)
    before, found = stands.report, world.run(ALL, OFFER, stands)
    assert stands.report.returned - before.returned == sum(why == "exit" for why, _ in found.values())
    assert stands.report.gone_on - before.gone_on == sum(why == "end" for why, _ in found.values())
    assert stands.report.state == "in use"


def hook_at_its_site(world: World, stands: VersionEvidence, owed: Owed[Decided] | None = None) -> InsideHook:
    """A hook of the whole batch that has been called."""
    batch = world.batch(ALL)
    hook = InsideHook(batch, {i: Concern(t, stands, CASCADE) for i, t in enumerate(batch.texts)}, owed)
    hook(SITE, Rows.packed(torch.cat(world.rows), offsets_of(LENGTHS)))
    return hook


def test_a_text_that_fails_is_an_audit_only_if_it_has_its_answer(world: World) -> None:
    """Such an audit counts as a disagreement: otherwise texts on which the levels disagree might get lost."""
    for midway in (True, False):
        stands = opened(OFFER, share=1.0)
        before, hook = stands.report, hook_at_its_site(world, stands)
        assert stands._watched.trial.under_way == len(LENGTHS)
        errors: list[Output] = [ValueError("planted")] * len(LENGTHS)
        assert midway or hook.ended(list(ALL), errors) == errors
        hook.close()
        after = stands.report
        assert stands._watched.trial.under_way == 0
        lost = after.audited - before.audited, after.disagreed - before.disagreed
        assert lost == (after.returned, after.returned)
        assert 0 < after.returned < len(LENGTHS)


@pytest.mark.parametrize("runs", [True, False])
def test_audits_of_a_failed_batch_go_on_where_its_texts_run_again(world: World, runs: bool) -> None:
    """The fault may be another tenant's: it is no disagreement unless the texts fail again."""
    stands, owed = opened(OFFER, share=1.0), Owed[Decided](lost)
    before, hook = stands.report, hook_at_its_site(world, stands, owed)
    hook.failed()
    hook.close()
    left = stands.report.returned - before.returned
    assert 0 < left < len(LENGTHS)
    assert stands._watched.trial.under_way == left
    assert stands.report.audited == before.audited
    if runs:
        found = world.run(ALL, OFFER, stands, owed)
        anew = sum(why == "exit" for why, _ in found.values())
        assert stands.report.returned == before.returned + left + anew, "each text is answered once"
        assert stands.report.audited == before.audited + len(LENGTHS)
        assert stands.report.disagreed < before.disagreed + len(LENGTHS)
    else:
        owed.give_up(world.text(t).nonce for t in ALL)
        assert stands.report.disagreed == before.disagreed + left
    assert stands._watched.trial.under_way == 0
    assert not any(world.text(t).nonce in owed for t in ALL)
