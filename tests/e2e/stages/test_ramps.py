"""A ramp gives in the engine what it gave in its training, for every form of input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.model.sources.root import load_root
from hmi.model.tasks import task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.model.text.tokenizer import Text
from hmi.model.text.windows import encode_texts, first_pieces
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.planner import Candidate, Plan, RoundRobin
from hmi.stores.layout import Layout
from hmi.training.data.rows import Row
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages.ramp_rows import ramp_rows
from hmi.training.for_stages.ramps import ramp_outputs
from hmi.training.tasks.splits import Split
from tests.e2e.conftest import Home

ON = Setting("read")


class Reading:
    """A stage that records what each text's ramps say, and lets none leave."""

    name = "reading"

    def __init__(self) -> None:
        self.said: dict[tuple[str, int], Tensor] = {}

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=(1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        return [Reader(self, batch)]


class Reader:
    concerns = None

    def __init__(self, stage: Reading, batch: StageBatch) -> None:
        self.stage, self.batch = stage, batch
        self.at = frozenset(range(batch.layers))

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        texts = list(rows.texts)
        for text, said in zip(texts, self.batch.ramp(layer, rows, texts), strict=True):
            assert said is not None
            self.stage.said[self.batch.texts[text].id, layer] = said.clone()
        return rows, None

    def ended(self, texts: Sequence[int], outputs: list[Tensor | Exception]) -> list[Tensor | Exception]:
        return outputs

    def close(self) -> None:
        pass


class On(RoundRobin):
    def __init__(self, stage: Reading) -> None:
        self.stages = (stage,)

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        return Plan(min(candidates), {"reading": ON})


def texts_for(home: Home, name: str) -> list[Text]:
    covered = home.covered[:6]
    if name == "acme.pairs":
        return [(a, b) for a, b in zip(covered, reversed(covered), strict=True)]
    return [text.split() for text in covered] if name == "globex.tags" else list(covered)


@pytest.mark.parametrize("name", ["acme.mood", "acme.pairs", "globex.tags"])
async def test_a_served_ramp_gives_what_the_trained_one_gave(home: Home, name: str) -> None:
    texts, stage = texts_for(home, name), Reading()
    engine = home.engine(None, On(stage), precision="fp32")
    await engine.start()
    await engine.infer([TextRequest(ModelId.parse(name), t, id=str(i)) for i, t in enumerate(texts)])
    await engine.stop()
    version = home.manager.registry.model(ModelId.parse(name)).live
    assert version.ramps == (0, 1)
    assert version.module is not None
    root = load_root(Layout(home.settings.data).root(version.root, version.root_version))
    artefact, task = Artefact.split(home.state(name)), task_of_version(version)
    trainer = reading_trainer(root, version.module, task, artefact)
    encoded = [w for (w,) in encode_texts(root.tokenizer, texts, version.max_length, windows=False)]
    split = Split([Row(text, "") for text in texts], encoded)
    with home.manager.plots.reader(version.plot_version) as reader:
        examples = dev_examples(root, reader, split, trainer.plan.lexical)
        found = ramp_rows(trainer, task, encoded, examples, 10**6)
    for site in version.ramps:
        trained = ramp_outputs(artefact.ramps, site, found).split(found.counts)
        for i, (window, mine) in enumerate(zip(encoded, trained, strict=True)):
            served = stage.said[str(i), site]
            if name == "globex.tags":
                served = served[list(first_pieces(window.words).values())]
            torch.testing.assert_close(served.reshape(mine.shape), mine, rtol=1e-4, atol=1e-4)
