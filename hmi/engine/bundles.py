"""Version bundles: what one answer is made of, pinned when a request is admitted {root, PLOT chain, module, head}."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from hmi.core import ModelId, ModelVersion
from hmi.model.heads import Head, head_from
from hmi.model.lower import LocalLower
from hmi.model.modules import TenantModule, module_from
from hmi.model.root import Root, load_root, lower_from
from hmi.stores.adapter_store import AdapterStore
from hmi.stores.registry import Registry
from plot_store import Reader, Store

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class TaskPart:
    """A tenant's module and head in memory."""

    module: TenantModule
    head: Head


@dataclass(frozen=True)
class Bundle:
    """Everything that a request pins. The module and head are leased from the pool when its batch runs."""

    model: ModelId
    version: ModelVersion
    root: Root
    reader: Reader


class Bundles:
    """Resolves models to bundles. Owns the loaded roots and the open PLOT readers; thread-safe."""

    def __init__(self, data: Path, registry: Registry, plots: Store, adapters: AdapterStore, lowers: AdapterStore):
        self._data, self._registry, self._plots = data, registry, plots
        self._adapters, self._lowers = adapters, lowers
        self._roots: dict[tuple[str, str], Root] = {}
        self._readers: dict[str, Reader] = {}
        self._exact: dict[str, LocalLower] = {}
        self._lock = threading.Lock()

    def resolve(self, model: ModelId) -> Bundle:
        """Pin the live version of `model`; raises NotFound."""
        version = self._registry.model(model).live
        return Bundle(model, version, self.root(version.root, version.root_version), self.reader(version.plot_version))

    def root(self, name: str, version: str) -> Root:
        key = (name, version)
        return self._once(self._roots, key, lambda: load_root(self._data / "roots" / name / version))

    def reader(self, plot_version: str) -> Reader:
        return self._once(self._readers, plot_version, lambda: self._plots.reader(plot_version))

    def lower(self, bundle: Bundle) -> LocalLower:
        """The lower layers behind a bundle's PLOT: only the `exact` reference computes them."""
        return self._once(self._exact, bundle.version.plot_version, lambda: self._load_lower(bundle))

    def load_task_part(self, artefact: str) -> tuple[TaskPart, int]:
        """Load a module and head from the adapter store, with their bytes in memory (fp32)."""
        state = self._adapters.get(artefact)
        module = module_from({k.removeprefix("module."): v for k, v in state.items() if k.startswith("module.")})
        head = head_from(state["head.out.weight"], state["head.out.bias"])
        return TaskPart(module, head), sum(v.numel() * 4 for v in state.values())

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _load_lower(self, bundle: Bundle) -> LocalLower:
        root, name = bundle.root, self._plots.version(bundle.version.plot_version).meta.get("lower")
        state: dict[str, Tensor] | None = self._lowers.get(name) if name else None
        if state is not None:
            return lower_from(state, root.info, root.tokenizer.cls_id)
        lower = load_root(self._data / "roots" / root.info.name / root.info.version, with_lower=True).lower
        assert lower is not None
        return lower

    def _once(self, cache: dict[K, V], key: K, make: Callable[[], V]) -> V:
        found = cache.get(key)
        if found is None:
            # One lock for all: loading is rare, and two threads must not load one root twice.
            with self._lock:
                found = cache.get(key)
                if found is None:
                    found = cache[key] = make()
        return found
