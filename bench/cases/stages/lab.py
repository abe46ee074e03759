"""The engines that a section compares, in one process: with the stages, without any, and one that records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases.serve.engine import Serving, chosen, serving
from hmi.core import ModelId, Objective
from hmi.engine import Engine, TextRequest
from hmi.engine.bundles import Bundles
from hmi.execution.batch import BatchKey
from hmi.execution.choose import Chosen
from hmi.metrics import Metrics
from hmi.stages import Planner, RoundRobin
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.report import ExitReport
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.profile import READS, cost_of
from hmi.stages.planning.profile import Lab as StageLab
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.stores.profiles import StageProfiles


class Shared(Bundles):
    """Bundles that several engines use: they stay open when an engine stops."""

    def close(self) -> None:
        """Do nothing: `end` closes them."""

    def end(self) -> None:
        super().close()


@dataclass(frozen=True)
class Lab:
    """A data folder whose roots are in memory. Engines that it starts share them, and nothing else."""

    serving: Serving

    @asynccontextmanager
    async def engine(self, planner: Planner | None = None, batch_ms: int = 0) -> AsyncIterator[Engine]:
        """Run an engine. planner: None is one of the server's stages, without states of earlier runs.
        batch_ms: the target time of a batch; 0: the default."""
        s, planner = self.serving, planner or RoundRobin([EarlyExit(), CascadeInside()])
        settings = replace(s.manager.settings, batch_ms=batch_ms or s.manager.settings.batch_ms)
        engine = Engine(s.bundles, settings, Metrics(), None, planner)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    @asynccontextmanager
    async def without(self) -> AsyncIterator[Engine]:
        """Run an engine whose planner has no stages."""
        async with self.engine(RoundRobin()) as engine:
            yield engine

    @asynccontextmanager
    async def served(self, stages: str, states: Path) -> AsyncIterator[Engine]:
        """Run an engine as a server does that has these stages (`Settings.stages`).

        states: the folder from which it reads profiles of settings and what earlier engines learned, and to
        which it writes that.
        """
        s = self.serving
        engine = Engine(s.bundles, replace(s.manager.settings, stages=stages, data=states), Metrics())
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    def agree(self, model: ModelId, agreement: float | None, under_load: float | None = None) -> None:
        """Set the fraction of a model's answers that must equal the full model's; None: no stage.

        under_load: the same for token adaptation.
        """
        objective = Objective(agreement=agreement, agreement_under_load=under_load)
        self.serving.manager.registry.change_model(
            model, lambda record: record.model_copy(update={"objective": objective})
        )

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set tenants' weights."""
        for tenant, weight in weights.items():
            self.serving.manager.set_tenant(tenant, weight=weight)

    def costs(self, model: ModelId) -> Callable[[BatchKey], Cost | None]:
        """Return the measured costs of batches of a model's root under token adaptation's settings.

        They are measured now, if the folder has no profile of them: for most of a minute.
        """
        live = self.serving.manager.registry.model(model).live
        upper = self.serving.bundles.upper(live).now()
        assert upper is not None, "the lab has asked each root"
        assert isinstance(upper.executor, Chosen), "as for each root of a server"
        root, kept = (live.root, live.root_version), StageProfiles(Layout(self.serving.manager.settings.data))
        upper.executor.settle()
        lab = StageLab(TokenAdaptation(), upper.executor, root, upper.root.info.shape, upper.root.max_length)
        found = lab.known(kept)
        if found is None:
            found = lab.measure()
            kept.put(*root, found)
        by_key = {BatchKey(root, reads, exact=False): cost_of(found, reads) for reads in READS}
        return by_key.get

    def exits(self, engine: Engine, model: ModelId) -> ExitReport | None:
        """Return an engine's report of a model's exits; None if no text of the model was concerned."""
        live = self.serving.manager.registry.model(model).live
        return None if engine.exits is None else engine.exits.report(live.artefact, model)

    def cascade(self, engine: Engine, model: ModelId) -> CascadeReport | None:
        """Return an engine's report of a model's cascade; None if no text of it was concerned."""
        record = self.serving.manager.registry.model(model)
        small = "" if record.cascade is None else record.cascade.small_artefact or ""
        return engine.cascade_report(model, record.live.artefact, small, record.objective.agreement)

    def depth(self, model: ModelId) -> int:
        """The number of upper layers of a model's root."""
        live = self.serving.manager.registry.model(model).live
        upper = self.serving.bundles.upper(live).now()
        assert upper is not None, "the lab has asked each root"
        return upper.executor.layers


@asynccontextmanager
async def opened(data: Path, models: Sequence[ModelId]) -> AsyncIterator[Lab]:
    """Open a folder. Before the context opens, each of `models` has answered, and its root's executor is
    chosen. Raises Conflict if a server or another benchmark runs on the folder."""
    async with serving(data, models[0], Shared) as found:
        assert isinstance(found.bundles, Shared)
        try:
            for model in models[1:]:
                await found.ask(model, "first")
                await chosen(found.bundles, found.manager.registry.model(model).live)
            yield Lab(found)
        finally:
            found.bundles.end()


def requests_of(model: ModelId, texts: Sequence[str], name: str, first: int = 0) -> list[TextRequest]:
    """Requests whose ids, and with them all draws, depend on `name` and their place in the stream alone."""
    return [
        TextRequest(model, text, provenance=True, id=f"{name}-{first + i}") for i, text in enumerate(texts)
    ]
