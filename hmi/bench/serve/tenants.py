"""Tenants with a model of real size each, written through the real stores, without training.

A model's weights are random, not zero, and follow from its seed alone, so that every model differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from hmi.core import KeyRecord, ModelId, ModelVersion, ModuleSpec, TenantRecord, now
from hmi.manager import Manager
from hmi.model.artefact import Artefact
from hmi.model.heads import Head, head_input_size, head_queries
from hmi.model.modules import new_module
from hmi.model.root import RootInfo, read_root_info
from hmi.modulespec import Kind
from hmi.stores import key_table, model_table
from hmi.stores.layout import Layout
from hmi.stores.plot_meta import PlotMeta
from hmi.stores.registry_database import RegistryDatabase
from hmi.stores.sealed import RegistryTxn
from hmi.stores.table import TENANT, Table
from plot_store import VersionInfo

MODEL = "m"
"""The name of each tenant's model."""
LABELS = ("a", "b", "c", "d")
MAX_LENGTH = 128
AT_ONCE = 500
"""Tenants of one transaction."""
WRITERS = 4
"""Threads that write artefacts, since a durable write mostly waits for the disk."""
RANKS = (2, 4, 8, 16, 32)
STD = 0.03
"""Standard deviation of a module's weights, of the size that training gives them."""
HEAD_STD = 0.5
"""The same of a head's: large enough that answers of two models differ."""


@dataclass(frozen=True)
class Model:
    """One version of a tenant's model, before it is stored."""

    tenant: str
    seed: int
    spec: ModuleSpec = field(default_factory=ModuleSpec)
    number: int = 1
    """The version's number."""

    @property
    def id(self) -> ModelId:
        return ModelId(self.tenant, MODEL)


@dataclass(frozen=True)
class Ground:
    """What models stand on: the root, and its PLOT."""

    info: RootInfo
    plot: VersionInfo

    @classmethod
    def of(cls, manager: Manager, root: str) -> Ground:
        plot = manager.plots.refs()[root]
        folder = Layout(manager.settings.data).root(root, PlotMeta.of(plot).root_version)
        return cls(read_root_info(folder), plot)

    @property
    def depth(self) -> int:
        """The number of upper layers."""
        return self.info.shape.layers - self.info.split


def key_of(tenant: str) -> str:
    """Return a tenant's key. It follows from the name, so use it in benchmarks only."""
    return "hmi_" + hashlib.sha256(f"hmi bench serve {tenant}".encode()).hexdigest()


def mixed_spec(i: int) -> ModuleSpec:
    """Return the `i`-th of all combinations of kind and rank."""
    kinds = get_args(Kind)
    return ModuleSpec(kind=kinds[i % len(kinds)], rank=RANKS[i // len(kinds) % len(RANKS)])


def write_tenants(manager: Manager, ground: Ground, models: Sequence[Model]) -> Iterator[int]:
    """Store the models with their tenants and keys. Yields how many are stored.

    The models of one call must have tenants of their own, unless they are versions in their order. A model
    that exists already stays as it is. Raises StorageFull.
    """
    database, table = RegistryDatabase.open(Layout(manager.settings.data).registry), Table()
    try:
        with ThreadPoolExecutor(WRITERS) as writers:
            for at in range(0, len(models), AT_ONCE):
                some = models[at : at + AT_ONCE]
                stored = list(writers.map(lambda m: put_model(manager, ground, m), some))

                def body(txn: RegistryTxn, stored: Sequence[tuple[Model, ModelVersion]] = stored) -> None:
                    for model, version in stored:
                        _publish(table, txn, model, version)

                database.write(body)
                yield at + len(some)
    finally:
        database.release()


def put_model(manager: Manager, ground: Ground, model: Model) -> tuple[Model, ModelVersion]:
    """Store a model's artefact. Returns the model and the record of its version. Raises StorageFull."""
    artefact, size = manager.adapters.put(tensors_of(ground, model).joined())
    version = ModelVersion(
        version=model.number,
        artefact=artefact,
        domain=ground.plot.ref,
        plot_version=ground.plot.id,
        root=ground.info.name,
        root_version=ground.info.version,
        task="classification",
        labels=LABELS,
        module=model.spec,
        max_length=min(MAX_LENGTH, ground.info.shape.positions),
        metrics={},
        bytes=size,
        created=now(),
        job=f"{model.tenant}-{model.number}",
    )
    return model, version


def tensors_of(ground: Ground, model: Model) -> Artefact:
    """Return a model's tensors in fp16, which are stored: a module and the head of a classification."""
    g, dim = torch.Generator().manual_seed(model.seed), ground.info.shape.dim
    with torch.random.fork_rng(devices=[]):
        module = new_module(model.spec, ground.info.shape, ground.depth)
        queries = head_queries("cls", len(LABELS))
        head = Head(head_input_size("classification", dim), len(LABELS), queries=queries, dim=dim)
    changed = {
        name: torch.randn(value.shape, generator=g).mul_(STD) for name, value in module.state_dict().items()
    }
    outputs: dict[str, Tensor] = {
        name: torch.randn(value.shape, generator=g).mul_(HEAD_STD)
        for name, value in head.state_dict().items()
    }
    return Artefact(changed, outputs).map(lambda value: value.half())


def _publish(table: Table, txn: RegistryTxn, model: Model, version: ModelVersion) -> None:
    if txn.get(TENANT + model.tenant) is None:
        table.put(txn, TENANT + model.tenant, TenantRecord(tenant=model.tenant, created=now()))
        sha256 = hashlib.sha256(key_of(model.tenant).encode()).hexdigest()
        key = KeyRecord(
            key_id=f"k{sha256[:16]}",
            sha256=sha256,
            tenant=model.tenant,
            scopes=("infer", "manage"),
            created=now(),
        )
        key_table.put_key(table, txn, key)
    model_table.publish_model(table, txn, model.id, version)
