"""Models with ramps made by hand, and controls whose policy is planted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hmi.core import ModelId, ModelRecord, Objective
from hmi.engine import Engine, TextRequest
from hmi.stages.early_exit.control import Policy
from hmi.stages.early_exit.evidence import Alarm
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.early_exit.state import ModelState
from hmi.stores.layout import Layout
from tests.e2e.conftest import Home

SITES = (0, 1)
AGREEMENT = 0.99


def as_the_head(state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of a ramp that computes what the head does, without the head's queries."""
    weight, bias = state["head.out.weight"], state["head.out.bias"]
    queries = len(state["head.query"]) if "head.query" in state else 0
    return weight[:, : weight.shape[1] - queries * state["head.query"].shape[1]] if queries else weight, bias


def always(state: dict[str, Tensor], label: int, logit: float = 20.0) -> tuple[Tensor, Tensor]:
    """Weight and bias of a ramp that always gives this label, surely."""
    weight, bias = as_the_head(state)
    return torch.zeros_like(weight), torch.zeros_like(bias).index_fill(0, torch.tensor([label]), logit)


@contextmanager
def ramped(
    home: Home,
    model: ModelId,
    ramps: dict[int, tuple[Tensor, Tensor]] | None = None,
    agreement: float | None = AGREEMENT,
) -> Iterator[str]:
    """The model with these ramps, by default the head itself at each of SITES; yields its artefact.

    Equal ramps make an equal artefact, so what an engine kept of its exits is deleted in the end.
    """
    before, state = home.manager.registry.model(model), home.state(str(model))
    made = {site: as_the_head(state) for site in SITES} if ramps is None else ramps
    for site, (weight, bias) in made.items():
        state |= {f"ramps.{site}.out.weight": weight.clone(), f"ramps.{site}.out.bias": bias.clone()}
    artefact, size = home.manager.adapters.put(state)

    def change(record: ModelRecord) -> ModelRecord:
        live = record.live.model_copy(
            update={"artefact": artefact, "bytes": size, "ramps": tuple(sorted(made))}
        )
        versions = tuple(live if v.version == live.version else v for v in record.versions)
        return record.model_copy(update={"versions": versions, "objective": Objective(agreement=agreement)})

    home.manager.registry.change_model(model, change)
    try:
        yield artefact
    finally:
        home.manager.registry.change_model(model, lambda _: before)
        shutil.rmtree(Layout(home.settings.data).exits / artefact, ignore_errors=True)


def state_of(engine: Engine, artefact: str) -> ModelState:
    assert isinstance(engine.exits, EarlyExit)
    (state,) = engine.exits._states.known(artefact, None)
    return state


def plant(state: ModelState, thresholds: Sequence[float], texts: int = 1_000_001, phase: int = 2) -> None:
    """Put a policy into force, on an account that can afford it."""
    control = state.control
    control.present, control.tested = Policy(tuple(thresholds), Alarm(control.terms.loss)), ()
    control.account.texts, control.account.phase, control.off = texts, phase, False
    control.account.used, control.windows = phase, 8
    control.wait = 1 << 30


def requests(model: ModelId, texts: Sequence[object], name: str = "r") -> list[TextRequest]:
    return [
        TextRequest(model, t, scores=True, provenance=True, id=f"{name}-{i}")  # type: ignore[arg-type]
        for i, t in enumerate(texts)
    ]
