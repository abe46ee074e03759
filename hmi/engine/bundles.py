"""Bundles: the versions of root, PLOT chain, module and head that an answer uses, pinned at its request's admission."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hmi.core import ModelId, ModelVersion
from hmi.engine.cache import IdleCache
from hmi.model.heads import Head, head_from
from hmi.model.lexical import Lexical, lexical_from
from hmi.model.lower import LocalLower
from hmi.model.modules import TenantModule, module_from
from hmi.model.packed import pack_upper
from hmi.model.prepacked import described
from hmi.model.root import Root, load_root, lower_from
from hmi.model.tasks import TaskKind, task_of_version
from hmi.stores.adapter_store import AdapterStore, DamagedArtefact
from hmi.stores.registry import Registry
from plot_store import Reader, Store

log = logging.getLogger("hmi.engine")
IDLE_S = 600.0


@dataclass(frozen=True)
class TaskPart:
    """A tenant's module and what goes with it in memory; an embedding has no head, and not all have the rest."""

    module: TenantModule
    head: Head | None
    lexical: Lexical | None
    transitions: Tensor | None


@dataclass(frozen=True)
class Bundle:
    """Everything that a request pins. The module and head are leased from the pool when its batch runs."""

    model: ModelId
    version: ModelVersion
    root: Root
    reader: Reader
    task: TaskKind


class Bundles:
    """Resolves models to bundles. Owns the loaded roots and the open PLOT readers; thread-safe."""

    def __init__(self, data: Path, registry: Registry, plots: Store, adapters: AdapterStore, lowers: AdapterStore):
        self._data, self._registry, self._plots = data, registry, plots
        self._adapters, self._lowers = adapters, lowers
        self._roots: IdleCache[tuple[str, str], Root] = IdleCache(16, IDLE_S)
        # An open reader keeps its version from collection, so an unused one must not stay.
        self._readers: IdleCache[str, Reader] = IdleCache(1024, IDLE_S)
        self._exact: IdleCache[tuple[str, str, str | None], LocalLower] = IdleCache(2, IDLE_S)

    def resolve(self, model: ModelId) -> Bundle:
        """Pin the live version of `model`; raises NotFound."""
        version = self._registry.model(model).live
        root, reader = self.root(version.root, version.root_version), self.reader(version.plot_version)
        return Bundle(model, version, root, reader, task_of_version(version))

    def root(self, name: str, version: str) -> Root:
        return self._roots.get((name, version), lambda: self._load_root(name, version))

    def reader(self, plot_version: str) -> Reader:
        return self._readers.get(plot_version, lambda: self._plots.reader(plot_version))

    def lower(self, bundle: Bundle) -> LocalLower:
        """The lower layers behind a bundle's PLOT: only the `exact` reference computes them."""
        name: str | None = bundle.reader.version.meta.get("lower")
        key = (bundle.version.root, bundle.version.root_version, name)
        try:
            return self._exact.get(key, lambda: self._load_lower(bundle.root, name))
        except DamagedArtefact as error:
            raise error.of(f"domain {bundle.reader.version.ref}'s lower layers") from error

    def load_task_part(self, artefact: str) -> tuple[TaskPart, int]:
        """Load a module and head from the adapter store, with their bytes in memory (fp32)."""
        state = self._adapters.get(artefact)
        module = module_from(_part(state, "module"))
        head = head_from(_part(state, "head")) if "head.out.weight" in state else None
        lexical = lexical_from(_part(state, "lexical")) if "lexical.table" in state else None
        part = TaskPart(module, head, lexical, state.get("transitions.table"))
        return part, sum(v.numel() * 4 for v in state.values())

    def close(self) -> None:
        self._readers.clear()
        self._roots.clear()
        self._exact.clear()

    def _load_root(self, name: str, version: str) -> Root:
        root = load_root(self._data / "roots" / name / version)
        pack_upper(root.upper)
        log.info("root %s: reordered linear maps against plain ones on this machine: %s", name, described())
        return root

    def _load_lower(self, root: Root, name: str | None) -> LocalLower:
        if name is not None:
            return lower_from(self._lowers.get(name), root.info, root.tokenizer.cls_id)
        lower = load_root(self._data / "roots" / root.info.name / root.info.version, with_lower=True).lower
        assert lower is not None
        return lower


def _part(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one part of an artefact, by their own names."""
    return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
