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

from hmi.core import KeyRecord, ModelId, ModelVersion, ModuleSpec, Scope, TenantRecord, now
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
"""The number of tenants that one transaction writes."""
WRITERS = 4
"""Threads that write artefacts, since a durable write mostly waits for the disk."""
RANKS = (2, 4, 8, 16, 32)
STD = 0.03
"""Standard deviation of a module's weights, of the size that training gives them."""
HEAD_STD = 0.05
"""Standard deviation of a head's weights: large enough that answers differ, small enough that no score is
1."""


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
    """The root and PLOT that the models use."""

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

    In one call, a tenant may have several `models` only if they are versions of one model, in their order. A
    model that exists already does not change. Raises StorageFull.
    """
    with ThreadPoolExecutor(WRITERS) as writers:
        for at in range(0, len(models), AT_ONCE):
            some = models[at : at + AT_ONCE]
            versions = writers.map(lambda m: put_model(manager, ground, m), some)
            publish_at_once(manager, [(m.id, version) for m, version in zip(some, versions, strict=True)])
            yield at + len(some)


def publish_at_once(manager: Manager, versions: Sequence[tuple[ModelId, ModelVersion]]) -> None:
    """Publish versions in one transaction, with the tenants and keys that are missing."""
    database, table = RegistryDatabase.open(Layout(manager.settings.data).registry), Table()

    def body(txn: RegistryTxn) -> None:
        for model, version in versions:
            _add_tenant(table, txn, model.tenant)
            model_table.publish_model(table, txn, model, version)

    try:
        database.write(body)
    finally:
        database.release()


def put_model(manager: Manager, ground: Ground, model: Model) -> ModelVersion:
    """Store a model's artefact and return the record of its version. Raises StorageFull."""
    artefact, size = manager.adapters.put(tensors_of(ground, model).joined())
    return ModelVersion(
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


def _add_tenant(table: Table, txn: RegistryTxn, tenant: str) -> None:
    if txn.get(TENANT + tenant) is not None:
        return
    table.put(txn, TENANT + tenant, TenantRecord(tenant=tenant, created=now()))
    sha256 = hashlib.sha256(key_of(tenant).encode()).hexdigest()
    scopes: tuple[Scope, ...] = ("infer", "manage")
    key = KeyRecord(key_id=f"k{sha256[:16]}", sha256=sha256, tenant=tenant, scopes=scopes, created=now())
    key_table.put_key(table, txn, key)
