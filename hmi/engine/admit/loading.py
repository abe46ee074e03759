"""Loading of models: finds a model's bundle, and loads on other threads what is not in memory.

Concurrent callers share one load of each part (single-flight).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import plot_store
from hmi.core import ModelId, ModelRecord, ModelVersion
from hmi.engine.admit.bundles import Bundle, Bundles, Key, Part, TaskPart, Upper, WritingBundle
from hmi.engine.watch.threads import in_thread
from hmi.engine.writing.request import writes_no_text
from hmi.engine.writing.writer import Writer
from hmi.errors import Damaged, HmiError, InvalidInput, Unavailable
from hmi.execution.base import Executor
from hmi.execution.decoding.base import StepExecutor
from hmi.model.sources.lower import LocalLower
from hmi.model.tasks import task_of_version
from hmi.model.tenant.modules import TenantModule
from hmi.stores.failures import log_failure
from hmi.stores.tensors.adapter_pool import AdapterPool, NoRoom
from hmi.stores.tensors.adapter_store import DamagedArtefact
from plot_store import PlotStoreError, Reader

log = logging.getLogger("hmi.engine")
V = TypeVar("V")
Prepare = Callable[[TenantModule], int]
"""An executor's `prepare`."""
PART_THREADS = 8
"""Threads that load roots, PLOT readers and lower layers."""
MODULE_THREADS = 2
"""Threads that read modules. These reads are short and must not wait behind long loads."""
TOLD_S = 10.0
"""Least time between two log lines about the same module: each of a tenant's calls would cause one."""
MAX_TOLD = 1000
"""Modules whose last log lines are remembered."""
WHOLE_AFTER_S = 0.5
"""Seconds from the opening of a root's shards to the load of the whole root. The first answers need the
processor more."""
ROOM_S = 0.05
"""Seconds between two attempts of a batch that finds no room in the pool."""


class ModelLoader:
    """Gives out models' bundles, and holds batches' modules in memory.

    Each part is loaded by itself, so a root, domain or module that takes seconds delays only the texts that
    wait for it. `now` may be called on any thread, `close` on any but the event loop's, the rest only on
    the event loop's.
    """

    def __init__(self, bundles: Bundles, pool: AdapterPool[TaskPart]) -> None:
        self._bundles, self._pool = bundles, pool
        self._part_threads = ThreadPoolExecutor(PART_THREADS, thread_name_prefix="hmi-load")
        self._module_threads = ThreadPoolExecutor(MODULE_THREADS, thread_name_prefix="hmi-modules")
        self._loads: dict[Key, asyncio.Future[Any]] = {}
        self._let_some_go = asyncio.Event()
        self._closed = False
        self._told: dict[str, float] = {}
        """The `time.monotonic()` of the last log line about each part that could not be loaded."""

    def now(self, model: ModelId, *, exact: bool) -> Bundle | None:
        """Return the live version's bundle, or None if a part must be loaded. Raises NotFound, Damaged."""
        record = self._record(model)
        version = record.live
        upper, reader = self._bundles.upper(version).now(), self._bundles.reader(version).now()
        if upper is None and reader is not None and (early := self._bundles.early(record, exact=exact)):
            upper = early.now()
        if upper is None or reader is None or not self._pool.has(version.artefact):
            return None
        lower = self._bundles.lower(version, upper, reader).now() if exact else None
        bits = 0 if exact else self._bundles.bits(record, upper)
        return None if exact and lower is None else _bundle(model, record, upper, reader, lower, bits)

    async def load(self, model: ModelId, *, exact: bool) -> Bundle:
        """Load what is missing and return the live version's bundle.

        Raises NotFound, Damaged, Unavailable.
        """
        while (bundle := await self._load(model, exact=exact)) is None:
            pass
        return bundle

    async def _load(self, model: ModelId, *, exact: bool) -> Bundle | None:
        """Do what `load` does; None if the version was deleted meanwhile, and the model has others now."""
        record = await in_thread(self._module_threads, lambda: self._record(model))
        version = record.live
        upper, reader = await asyncio.gather(self._upper(record, exact=exact), self._reader(model, version))
        await self._module(model, version, partial(upper.executor.prepare, exact=exact), upper.executor)
        lower: LocalLower | None = None
        if exact:
            try:
                lower = await self._part(self._bundles.lower(version, upper, reader))
            except DamagedArtefact as error:  # domains may share the file: name the caller's own
                raise error.of(f"domain {reader.version.ref}'s lower layers") from error
        if not await in_thread(self._module_threads, lambda: self._is_alive(model, version)):
            return None
        bits = 0 if exact else self._bundles.bits(record, upper)
        return _bundle(model, record, upper, reader, lower, bits)

    async def load_writing(self, model: ModelId) -> WritingBundle:
        """Load what is missing to write with the live version of a language model's tenant.

        Raises NotFound, InvalidInput (the model does not write), Damaged, Unavailable.
        """
        while (bundle := await self._load_writing(model)) is None:
            pass
        return bundle

    async def _load_writing(self, model: ModelId) -> WritingBundle | None:
        """Do what `load_writing` does; None if the version was deleted meanwhile."""
        record = await in_thread(self._module_threads, lambda: self._bundles.record(model))
        version = record.live
        if version.task != "generation":
            raise writes_no_text(model, version.task, f"POST /infer/{model}")
        writer, reader = await asyncio.gather(
            self._part(self._bundles.writer(version)), self._reader(model, version)
        )
        await self._module(model, version, writer.executor.prepare)
        alive = await in_thread(self._module_threads, lambda: self._is_alive(model, version))
        return WritingBundle(model, version, writer, reader) if alive else None

    async def load_any(self, model: ModelId) -> None:
        """Load what is missing of a model of any task. Raises as `load` and `load_writing`."""
        record = await in_thread(self._module_threads, lambda: self._bundles.record(model))
        if record.live.task == "generation":
            await self.load_writing(model)
        else:
            await self.load(model, exact=False)

    def has(self, model: ModelId, version: ModelVersion) -> bool:
        """Return whether the model is there and still has this version, as far as can be read."""
        with suppress(HmiError):
            return any(v.artefact == version.artefact for v in self._bundles.record(model).versions)
        return False

    def weight(self, tenant: str) -> float:
        """The tenant's weight; see `TenantCache.weight`."""
        return self._bundles.weight(tenant)

    def writers(self) -> list[Writer]:
        """The writers of the language models in memory."""
        return self._bundles.writers()

    def _record(self, model: ModelId) -> ModelRecord:
        """The record of a model that gives answers of a head. Raises InvalidInput for one that writes."""
        record = self._bundles.record(model)
        if record.live.task == "generation":
            raise InvalidInput(f"{model} writes text: POST /generate/{model}", field="model")
        return record

    def in_memory(self, bundle: Bundle) -> bool:
        """Return whether the bundle's module is in memory, so that `hold` would not wait."""
        return self._pool.has(bundle.version.artefact)

    def prefetch(self, bundle: Bundle, then: Callable[[], None]) -> None:
        """Load the bundle's module, unless a load is under way, and call `then` once it is in memory.

        It is not loaded if that would evict a module which texts need, and `then` is not called.
        """
        artefact = bundle.version.artefact
        key = "module", artefact
        if key not in self._loads:
            read = partial(self._read, artefact, bundle.executor.prepare, bundle.executor)
            loading = self._begin(key, read, self._module_threads)
            loading.add_done_callback(lambda _: then() if self._pool.has(artefact) else None)

    @contextmanager
    def needing(self, artefacts: Sequence[str]) -> Iterator[None]:
        """Context manager: in the block, texts wait for these modules, so the pool evicts them last."""
        self._pool.need(artefacts)
        try:
            yield
        finally:
            self._pool.need_no_more(artefacts)

    async def hold(
        self, artefacts: list[str], executor: Executor, *, again: bool = False
    ) -> tuple[dict[str, TaskPart], dict[str, Exception]]:
        """Hold a batch's modules in memory until `let_go`; loads those that are not there for `executor`.

        Returns the modules by artefact, and the errors of those that could not be loaded. NoRoom is the error
        of a module that does not fit beside what running batches hold; if none fits, waits until one does.
        again: the batch runs once more, and its use of the modules was counted the first time.
        """

        def ready(part: TaskPart) -> None:
            part.ready(executor.prepare, executor)

        return await self._hold_some(artefacts, ready, again=again)

    async def hold_for_writing(self, artefact: str, executor: StepExecutor) -> TaskPart:
        """Hold the module of a text that is to be written until `let_go`. Raises what its load raises."""
        parts, errors = await self._hold_some([artefact], lambda part: part.ready(executor.prepare))
        if errors:
            self._pool.give_back([artefact])
            raise errors[artefact]
        return parts[artefact]

    async def _hold_some(
        self, artefacts: list[str], ready: Callable[[TaskPart], None], *, again: bool = False
    ) -> tuple[dict[str, TaskPart], dict[str, Exception]]:
        while True:
            parts, errors = await self._hold(artefacts, ready, again=again)
            if parts or not any(isinstance(error, NoRoom) for error in errors.values()):
                return parts, errors
            self._pool.give_back(artefacts)  # not `let_go`: this gives no room, and would end the wait below
            again = True
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_S):
                    await self._let_some_go.wait()

    async def _hold(
        self, artefacts: list[str], ready: Callable[[TaskPart], None], *, again: bool
    ) -> tuple[dict[str, TaskPart], dict[str, Exception]]:
        held = self._pool.take(artefacts, count=not again)
        if held is not None:
            return held, {}
        self._let_some_go.clear()

        def load() -> tuple[dict[str, TaskPart], dict[str, Exception]]:
            return self._pool.load(artefacts, count=not again, ready=ready)

        loading = in_thread(self._module_threads, load)
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(lambda done: self._give_back_unused(artefacts, done))
            raise

    def let_go(self, artefacts: list[str]) -> None:
        """End one `hold` of the same modules."""
        self._pool.give_back(artefacts)
        self._let_some_go.set()

    def forget(
        self, artefacts: Collection[str] = (), roots: Collection[str] = (), plots: Collection[str] = ()
    ) -> None:
        """Free the memory of deleted artefacts, roots and PLOT versions once no request in flight needs them.

        May be called on any thread.
        """
        self._pool.forget(artefacts)
        self._bundles.forget(roots, plots)

    def close(self) -> None:
        """Wait for the loads that have begun, and drop the others. Blocks: do not call on the event loop."""
        self._closed = True
        self._part_threads.shutdown(cancel_futures=True)
        self._module_threads.shutdown(cancel_futures=True)
        self._bundles.close()

    async def _module(
        self, model: ModelId, version: ModelVersion, prepare: Prepare, executor: Executor | None = None
    ) -> None:
        """Prefetch the module. Models may share one, so an error names this model."""
        key = "module", version.artefact
        self._pool.remember(
            version.artefact
        )  # if it is deleted from here on, `_is_alive` or the deletion forgets it
        if not self._pool.has(version.artefact):
            try:
                read = partial(self._read, version.artefact, prepare, executor)
                await self._once(key, read, self._module_threads)
            except DamagedArtefact as error:
                raise public_error(error, model, version) from error

    def _read(self, artefact: str, prepare: Prepare, executor: Executor | None) -> None:
        try:
            self._pool.prefetch(artefact, ready=lambda part: part.ready(prepare, executor))
        except Exception as error:
            self._tell(artefact, f"module {artefact[:16]}", error)
            raise

    async def _reader(self, model: ModelId, version: ModelVersion) -> Reader:
        """Open the version's PLOT. Models may share one, so an error names this model."""
        try:
            return await self._part(self._bundles.reader(version))
        except PlotStoreError as error:
            self._tell(version.plot_version, f"the PLOT of {version_name(model, version)}", error)
            raise public_error(error, model, version) from error

    def _tell(self, part: str, what: str, error: Exception) -> None:
        """Log a failed load, but not again with every call for the same part."""
        now = time.monotonic()
        if now - self._told.get(part, -TOLD_S) < TOLD_S:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told[part] = now
        log_failure(log, f"{what} could not be loaded", error)

    def _is_alive(self, model: ModelId, version: ModelVersion) -> bool:
        """Return whether the model still has this version. Raises NotFound if the model was deleted.

        If not, drop the parts that were loaded for it. The deletion could not, since they were not in memory
        yet.
        """
        alive = False
        try:
            alive = any(v.artefact == version.artefact for v in self._bundles.record(model).versions)
        finally:
            if not alive:
                self.forget([version.artefact], *self._bundles.gone(version))
        return alive

    async def _upper(self, record: ModelRecord, *, exact: bool) -> Upper:
        """Load the root. A model that allows it gets the root on shards, and the whole root is loaded for
        later texts."""
        whole = self._bundles.upper(record.live)
        if (found := whole.now()) is not None:
            return found
        early = await in_thread(self._module_threads, lambda: self._bundles.early(record, exact=exact))
        if early is None:
            return await self._part(whole)
        try:
            found = await self._part(early)
        except HmiError as error:
            log_failure(log, f"the shards of root {record.live.root} cannot be used", error)
            return await self._part(whole)
        asyncio.get_running_loop().call_later(WHOLE_AFTER_S, self._load_whole, whole)
        return found

    def _load_whole(self, whole: Part[Upper]) -> None:
        """Load a root that answers on shards, unless that is under way or done."""
        if whole.key not in self._loads and whole.now() is None and not self._closed:
            self._begin(whole.key, whole.load, self._part_threads).add_done_callback(_log_load_error)

    async def _part(self, part: Part[V]) -> V:
        value = part.now()
        return await self._once(part.key, part.load, self._part_threads) if value is None else value

    async def _once(self, key: Key, load: Callable[[], V], threads: ThreadPoolExecutor) -> V:
        """Load something once for all concurrent callers (single-flight)."""
        loading = self._loads.get(key) or self._begin(key, load, threads)
        try:
            found: V = await asyncio.shield(loading)
        finally:
            del loading  # its error's traceback refers to this frame: see `await_all`
        return found

    def _begin(self, key: Key, load: Callable[[], V], threads: ThreadPoolExecutor) -> asyncio.Future[V]:
        loading = self._loads[key] = in_thread(threads, load)
        loading.add_done_callback(lambda done: self._end(key, done))
        return loading

    def _give_back_unused(self, artefacts: list[str], done: asyncio.Future[Any]) -> None:
        """Give back what was loaded for a batch that is gone, unless the load failed or never began."""
        if not done.cancelled() and done.exception() is None:
            self._pool.give_back(artefacts)

    def _end(self, key: Key, done: asyncio.Future[Any]) -> None:
        del self._loads[key]
        if not done.cancelled():
            done.exception()  # mark it as retrieved: nobody may be waiting any more


def _log_load_error(done: asyncio.Future[Upper]) -> None:
    """Log the error of a root's load that nobody may be waiting for."""
    if not done.cancelled() and isinstance(error := done.exception(), Exception):
        log_failure(log, "a root that answers on shards could not be loaded", error)


def _bundle(
    model: ModelId, record: ModelRecord, upper: Upper, reader: Reader, lower: LocalLower | None, bits: int
) -> Bundle:
    version = record.live
    return Bundle(
        model,
        version,
        upper.root,
        upper.executor,
        reader,
        task_of_version(version),
        lower,
        record.objective,
        record.cascade,
        record.known_share,
        bits,
    )


PLOT_ERRORS: dict[type[PlotStoreError], tuple[type[HmiError], str]] = {
    plot_store.Damaged: (Damaged, "is damaged: restore it with an import of an export, or build it again"),
    plot_store.FormatTooNew: (Damaged, "was written by a later release: upgrade HMI"),
    plot_store.StoreIO: (Unavailable, "cannot be read from the disk: try again"),
}
"""By error of the PLOT store: the error of those who ask, and what it says. The store's own message names
files by hash."""


def public_error(error: Exception, model: ModelId, version: ModelVersion) -> Exception:
    """The error as the model's tenant may see it: it names the model's version and its domain, not the hash
    of an artefact or of a PLOT's file."""
    whose = version_name(model, version)
    if isinstance(error, DamagedArtefact):
        return error.of(whose)
    for kind, (public, what) in PLOT_ERRORS.items():
        if isinstance(error, kind):
            return public(f"the PLOT of {version.domain}, which {whose} reads, {what}")
    return error


def version_name(model: ModelId, version: ModelVersion) -> str:
    """The name of a version in errors and in the log."""
    return f"version {version.version} of model {model}"
