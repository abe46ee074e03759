"""A data folder with language models' tenants, and what their texts must be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmi.config import Settings
from hmi.core import ModelId, ModelVersion, ModuleSpec, now
from hmi.engine.writing.draft import Draft
from hmi.engine.writing.request import WriteRequest
from hmi.manager import Manager
from hmi.model.network.decoder import attend_before, rotary
from hmi.model.sources.generative_root import GenerativeRoot, load_generative_root
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import LowRankLayer, TenantModule, module_from
from hmi.stores.plot.plot_meta import PlotMeta
from tests.hmi.labs.api_world import World, running
from tests.hmi.labs.build_lab import run
from tests.hmi.model.test_decoder import write_language_model
from tests.tiny import random_texts

DOMAIN = "tiny/news"
PROMPT = "good film, the bad plot rises"
NEAR = 2e-3
"""Where the reference's best score is better by less, another token counts as well: rows are in int8."""


def words(seed: int, lines: int, high: int = 20) -> str:
    return "\n".join(random_texts(lines, seed, 5, high))


def write_models(base: Path) -> Path:
    """Make a data folder in `base`, and return its path.

    A root that looks up two layers, a domain, and the models acme.one, acme.two and beta.one.
    """
    data, source = base / "data", base / "source"
    write_language_model("llama", source, hidden_size=128, intermediate_size=192, max_position_embeddings=512)
    manager = Manager(Settings(data=data, job_workers=0))
    try:
        text = {"text-0": words(1, 280).encode()}
        run(
            manager, manager.import_root("tiny", str(source), split=2, texts=text, alpha=10, options={"n": 3})
        )
        run(manager, manager.create_domain(DOMAIN, words(2, 60).encode(), alpha=100))
        for tenant in ("acme", "beta"):
            manager.create_tenant(tenant)
        for seed, model in enumerate(("acme.one", "acme.two", "beta.one")):
            publish(manager, model, seed)
    finally:
        manager.close()
    return data


def publish(manager: Manager, model: str, seed: int, module: TenantModule | None = None) -> ModelVersion:
    """Publish a version with this module, else a random one, and return it."""
    found = manager.plots.refs()[DOMAIN]
    version = PlotMeta.of(found).root_version
    root = load_generative_root(manager.settings.data / "roots" / "tiny" / version)
    module = module or random_module(root, seed)
    artefact, size = manager.adapters.put(
        Artefact(module.half().state_dict()).joined(), {"task": "generation"}
    )
    made = ModelVersion(
        version=0,
        artefact=artefact,
        domain=DOMAIN,
        plot_version=found.id,
        root="tiny",
        root_version=version,
        task="generation",
        labels=(),
        module=ModuleSpec(rank=4, sites=("q", "v")),
        max_length=64,
        metrics={},
        bytes=size,
        created=now(),
        job=f"none-{seed}",
    )
    return manager.registry.publish_model(ModelId.parse(model), made).live


def random_module(root: GenerativeRoot, seed: int) -> TenantModule:
    draw, shape = torch.Generator().manual_seed(seed), root.info.shape

    def change(out: int) -> LowRankLayer:
        down = torch.randn(4, shape.dim, generator=draw) * shape.dim**-0.5
        return LowRankLayer(down, torch.randn(out, 4, generator=draw) * 0.5)

    sizes = {"q": shape.heads * shape.head_dim, "v": shape.kv_heads * shape.head_dim}
    layers = range(len(root.upper.layers))
    return TenantModule({f"{i}-{site}": change(size) for i in layers for site, size in sizes.items()})


@asynccontextmanager
async def server(data: Path, **settings: Any) -> AsyncIterator[World]:
    """A server on a folder with language models."""
    given = {"precision": "fp32", "writing_bytes": 4 << 20, "job_workers": 0, **settings}
    async with running(data, **given) as world:
        yield world


@asynccontextmanager
async def writing(world: World, wants: WriteRequest) -> AsyncIterator[Draft]:
    """Context manager: a text of the engine's own is being written."""
    with world.services.engine.admitted([wants]) as write:
        async with write(wants) as draft:
            assert isinstance(draft, Draft)
            yield draft


async def written(world: World, wants: WriteRequest) -> Draft:
    """A text of the engine's own, with its ids."""
    async with writing(world, wants) as draft:
        async for _ in draft:
            pass
    return draft


@dataclass
class Reference:
    """The whole text computed anew for each token, in torch."""

    manager: Manager

    def check(self, version: ModelVersion, prompt: Sequence[int], written: Sequence[int]) -> None:
        """Assert that each written id is the best one, or nearly."""
        ids = [*prompt, *written]
        scores = self.scores(version, ids)
        for at in range(len(prompt), len(ids)):
            row = scores[at - 1]
            assert row.max() - row[ids[at]] < NEAR * row[1:].std(), (at, ids)

    @torch.inference_mode()
    def scores(self, version: ModelVersion, ids: Sequence[int]) -> Tensor:
        """The scores of the next token after each id, [ids, vocab]."""
        folder = self.manager.settings.data / "roots" / "tiny" / version.root_version
        root = load_generative_root(folder)
        module = module_from(Artefact.split(self.manager.adapters.get(version.artefact)).module).float()
        with self.manager.plots.reader(version.plot_version) as reader:
            rows, _ = reader.lookup(np.array(ids[1:], np.int32), np.array([0, len(ids) - 1], np.int64))
        shape = root.info.shape
        x = torch.cat([root.upper.first[None], torch.from_numpy(rows)])[None]
        turns = rotary(len(ids), shape.head_dim, shape.base)
        for i, layer in enumerate(root.upper.layers):
            x = layer(x, turns, attend_before, module.delta(i))
        return root.upper.logits(x)[0]
