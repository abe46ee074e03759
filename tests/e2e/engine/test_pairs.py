"""Served scores of pairs are those of the trained model, with the alignment of its texts or without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.model.sources.root import load_root
from hmi.model.tasks import task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.stores.layout import Layout
from hmi.training.data.rows import Row
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.tasks.splits import encoded_split
from tests.e2e.conftest import Home

PAIRS, EARLIER = ModelId("acme", "pairs"), ModelId("acme", "earlier-pairs")
ALIGNMENT = "lexical.alignment."


@pytest.fixture(scope="module")
def earlier(home: Home) -> ModelId:
    """The model of pairs as an earlier release would have stored it: without an alignment."""
    live = home.manager.registry.model(PAIRS).live
    kept = {name: value for name, value in home.state(str(PAIRS)).items() if not name.startswith(ALIGNMENT)}
    artefact, size = home.manager.adapters.put(kept, home.manager.adapters.about(live.artefact))
    changed = {"version": 0, "artefact": artefact, "bytes": size, "ramps": (), "job": "earlier"}
    home.manager.registry.publish_model(EARLIER, live.model_copy(update=changed))
    return EARLIER


def pairs_of(home: Home) -> list[tuple[str, str]]:
    texts = home.covered[:12]
    return [(a, b) for a, b in zip(texts, texts[1:] + texts[:1], strict=True)] + [(t, t) for t in texts[:4]]


def trained_outputs(home: Home, model: ModelId) -> list[Tensor]:
    """The outputs of the stored tensors as the trainer computes them, in fp32."""
    live = home.manager.registry.model(model).live
    assert live.module is not None
    root = load_root(Layout(home.settings.data).root(live.root, live.root_version))
    rows = [Row(pair, "") for pair in pairs_of(home)]
    split = encoded_split(rows, root.tokenizer, live.max_length, windows=False)
    artefact = Artefact.split(home.manager.adapters.get(live.artefact))
    trainer = reading_trainer(root, live.module, task_of_version(live), artefact)
    with home.manager.plots.reader(live.plot_version) as reader:
        return trainer.predict(dev_examples(root, reader, split, trainer.plan.lexical), exact=True)


async def served_outputs(home: Home, model: ModelId, *, together: bool) -> list[Tensor]:
    requests = [TextRequest(model, pair, raw=True, early=False) for pair in pairs_of(home)]
    engine = home.engine()
    await engine.start()
    try:
        asked = [requests] if together else [[request] for request in requests]
        results = [result for some in asked for result in await engine.infer(some)]
    finally:
        await engine.stop()
    return [torch.tensor(result.outputs) for result in results]


@pytest.mark.parametrize("together", [True, False])
async def test_served_scores_are_those_of_the_trained_model(home: Home, together: bool) -> None:
    state = home.state(str(PAIRS))
    assert state[f"{ALIGNMENT}vectors"].any(), "the alignment must have been fitted for the test to mean much"
    for mine, wanted in zip(
        await served_outputs(home, PAIRS, together=together), trained_outputs(home, PAIRS), strict=True
    ):
        torch.testing.assert_close(mine, wanted, atol=2e-3, rtol=1e-3)


async def test_a_model_without_an_alignment_goes_on_answering(home: Home, earlier: ModelId) -> None:
    served, with_it = [await served_outputs(home, model, together=True) for model in (earlier, PAIRS)]
    for mine, wanted, other in zip(served, trained_outputs(home, earlier), with_it, strict=True):
        torch.testing.assert_close(mine, wanted, atol=2e-3, rtol=1e-3)
        assert not torch.allclose(mine, other, atol=2e-3)
