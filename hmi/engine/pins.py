"""Pinning: a model's bundle, with what is cold loaded on threads of their own, once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hmi.core import ModelId, ModelVersion
from hmi.engine.bundles import Bundle, Bundles, Key, Part, TaskPart, Upper
from hmi.model.lower import LocalLower
from hmi.model.tasks import task_of_version
from hmi.stores.adapter_pool import AdapterPool
from hmi.stores.adapter_store import DamagedArtefact
from plot_store import Reader

V = TypeVar("V")
LOADERS = 8
"""Parts that load at once; each root, domain and module at most once."""


class Pins:
    """Gives out bundles. Loads go by part: a root, a domain or a module that takes seconds delays those who wait for
    it, and nobody else. `found` may be called on any thread, the rest belongs to the event loop's.
    """

    def __init__(self, bundles: Bundles, pool: AdapterPool[TaskPart]) -> None:
        self._bundles, self._pool = bundles, pool
        self._threads = ThreadPoolExecutor(LOADERS, thread_name_prefix="hmi-load")
        self._loads: dict[Key, asyncio.Future[Any]] = {}

    def found(self, model: ModelId, *, exact: bool) -> Bundle | None:
        """The live version's bundle, where nothing has to be loaded for it. Raises NotFound, Damaged."""
        version = self._bundles.live(model)
        upper, reader = self._bundles.upper(version).now(), self._bundles.reader(version).now()
        if upper is None or reader is None or not self._pool.has(version.artefact):
            return None
        lower = self._bundles.lower(version, upper, reader).now() if exact else None
        return None if exact and lower is None else _bundle(model, version, upper, reader, lower)

    async def pin(self, model: ModelId, *, exact: bool) -> Bundle:
        """The live version's bundle; what is cold is loaded. Raises NotFound, Damaged, Unavailable."""
        version = await self._in_thread(lambda: self._bundles.live(model))
        upper, reader, _ = await asyncio.gather(
            self._part(self._bundles.upper(version)),
            self._part(self._bundles.reader(version)),
            self._once(("module", version.artefact), lambda: self._warm(model, version)),
        )
        lower = await self._part(self._bundles.lower(version, upper, reader)) if exact else None
        return _bundle(model, version, upper, reader, lower)

    async def hold(self, artefacts: list[str]) -> tuple[dict[str, TaskPart], dict[str, Exception]]:
        """The modules that could be loaded, in memory until `let_go`, and why others could not."""
        held = self._pool.take(artefacts)
        if held is not None:
            return held, {}
        loading = asyncio.ensure_future(self._in_thread(lambda: self._pool.load(artefacts)))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(lambda _: self._pool.give_back(artefacts))
            raise

    def let_go(self, artefacts: list[str]) -> None:
        self._pool.give_back(artefacts)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._bundles.close()

    def _warm(self, model: ModelId, version: ModelVersion) -> None:
        """Read a module into the pool, without holding it there."""
        _, errors = self._pool.load([version.artefact])
        self._pool.give_back([version.artefact])
        for error in errors.values():
            raise named(error, model, version) from error

    async def _part(self, part: Part[V]) -> V:
        value = part.now()
        return await self._once(part.key, part.load) if value is None else value

    async def _once(self, key: Key, load: Callable[[], V]) -> V:
        """What loading a part gave, begun by whoever came first."""
        loading = self._loads.get(key)
        if loading is None:
            loading = self._loads[key] = asyncio.ensure_future(self._in_thread(load))
            loading.add_done_callback(lambda _: self._loads.pop(key, None))
        found: V = await asyncio.shield(loading)
        return found

    async def _in_thread(self, work: Callable[[], V]) -> V:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _bundle(model: ModelId, version: ModelVersion, upper: Upper, reader: Reader, lower: LocalLower | None) -> Bundle:
    return Bundle(model, version, upper.root, upper.executor, reader, task_of_version(version), lower)


def named(error: Exception, model: ModelId, version: ModelVersion) -> Exception:
    """What is said of an artefact that is damaged to those who know no hashes."""
    whose = f"version {version.version} of model {model}"
    return error.of(whose) if isinstance(error, DamagedArtefact) else error
