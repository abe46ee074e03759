"""Pinning: gives out a model's bundle. Parts that are not in memory are loaded on other threads, each once
for all who wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hmi.core import ModelId, ModelVersion
from hmi.engine.bundles import Bundle, Bundles, Key, Part, TaskPart, Upper
from hmi.engine.threads import in_thread
from hmi.model.lower import LocalLower
from hmi.model.tasks import task_of_version
from hmi.stores.adapter_pool import AdapterPool
from hmi.stores.adapter_store import DamagedArtefact
from hmi.stores.failures import tell
from plot_store import Reader

log = logging.getLogger("hmi.engine")
V = TypeVar("V")
LOADERS = 8
"""Roots and domains that load at once, each once."""
MODULE_LOADERS = 2
"""Threads that read modules: short work, which is not to wait for the long one."""


class Pins:
    """Gives out bundles. Each part is loaded by itself: a root, domain or module that takes seconds delays
    only those who wait for it. `found` may be called on any thread, the rest only on the event loop's.
    """

    def __init__(self, bundles: Bundles, pool: AdapterPool[TaskPart]) -> None:
        self._bundles, self._pool = bundles, pool
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="hmi-load")
        self._readers = ThreadPoolExecutor(MODULE_LOADERS, thread_name_prefix="hmi-modules")
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
        version = await in_thread(self._readers, lambda: self._bundles.live(model))
        upper, reader, _ = await asyncio.gather(
            self._part(self._bundles.upper(version)),
            self._part(self._bundles.reader(version)),
            self._module(model, version),
        )
        lower: LocalLower | None = None
        if exact:
            try:
                lower = await self._part(self._bundles.lower(version, upper, reader))
            except DamagedArtefact as error:  # of several domains, perhaps: each hears of its own
                raise error.of(f"domain {reader.version.ref}'s lower layers") from error
        return _bundle(model, version, upper, reader, lower)

    async def hold(self, artefacts: list[str]) -> tuple[dict[str, TaskPart], dict[str, Exception]]:
        """The modules that could be loaded, in memory until `let_go`, and why others could not."""
        held = self._pool.take(artefacts)
        if held is not None:
            return held, {}
        loading = in_thread(self._readers, lambda: self._pool.load(artefacts))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(lambda done: self._nobody_waits(artefacts, done))
            raise

    def let_go(self, artefacts: list[str]) -> None:
        self._pool.give_back(artefacts)

    def close(self) -> None:
        """Wait for the loads that have begun; those that have not are dropped. Not for the event loop's
        thread."""
        self._loaders.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        self._bundles.close()

    async def _module(self, model: ModelId, version: ModelVersion) -> None:
        """See that the module is in memory, without holding it there. Several models may share one: an error
        is named for this one."""
        key = "module", version.artefact
        if not self._pool.has(version.artefact):
            try:
                await self._once(key, lambda: self._read(version.artefact), self._readers)
            except Exception as error:
                raise named(error, model, version) from error

    def _read(self, artefact: str) -> None:
        _, errors = self._pool.load([artefact])
        self._pool.give_back([artefact])
        for error in errors.values():
            tell(log, "a module could not be loaded", error)
            raise error

    async def _part(self, part: Part[V]) -> V:
        value = part.now()
        return await self._once(part.key, part.load, self._loaders) if value is None else value

    async def _once(self, key: Key, load: Callable[[], V], threads: ThreadPoolExecutor) -> V:
        """What loading a part gave, begun by whoever came first."""
        loading = self._loads.get(key)
        if loading is None:
            loading = self._loads[key] = in_thread(threads, load)
            loading.add_done_callback(lambda done: self._loaded(key, done))
        found: V = await asyncio.shield(loading)
        return found

    def _nobody_waits(self, artefacts: list[str], done: asyncio.Future[Any]) -> None:
        """What was loaded for a batch that is gone is not held. A load that failed or never began holds
        nothing."""
        if not done.cancelled() and done.exception() is None:
            self._pool.give_back(artefacts)

    def _loaded(self, key: Key, done: asyncio.Future[Any]) -> None:
        del self._loads[key]
        if not done.cancelled():
            done.exception()  # seen, though nobody may wait for it any more


def _bundle(
    model: ModelId, version: ModelVersion, upper: Upper, reader: Reader, lower: LocalLower | None
) -> Bundle:
    return Bundle(model, version, upper.root, upper.executor, reader, task_of_version(version), lower)


def named(error: Exception, model: ModelId, version: ModelVersion) -> Exception:
    """What is said of an artefact that is damaged to those who know no hashes."""
    whose = f"version {version.version} of model {model}"
    return error.of(whose) if isinstance(error, DamagedArtefact) else error
