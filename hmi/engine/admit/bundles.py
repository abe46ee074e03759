"""Bundles: the versions of root, PLOT chain, module and head that answer a text.

A text's bundle is chosen when the text is admitted, and stays the same until the text is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from hmi.core import MAX_AGREEMENT, Cascade, ModelId, ModelRecord, ModelVersion, Objective
from hmi.engine.admit.cache import IdleCache
from hmi.engine.admit.streamed import Shards, Streamed, load_codec
from hmi.engine.writing.writer import Writer
from hmi.errors import Damaged, NotFound
from hmi.execution.base import Executor
from hmi.execution.batch import BatchKey
from hmi.execution.choose import Chosen, executor_for
from hmi.execution.decoding.choose import step_executor
from hmi.model.memory import give_back_memory
from hmi.model.sources.generative_root import load_generative_root
from hmi.model.sources.lower import LocalLower
from hmi.model.sources.root import SERVED, Root, load_root, lower_from
from hmi.model.tasks import TaskKind
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import Head, copied_ramps, head_from
from hmi.model.tenant.modules import TenantModule, module_from
from hmi.model.tenant.novelty import OwnTexts
from hmi.model.tenant.novelty_threshold import threshold_of
from hmi.model.tenant.prompts import check_prompts, copied_prompts
from hmi.model.text.lexical import Lexical, lexical_from
from hmi.stages.elastic_shards.io_budget import IoBudget
from hmi.stores.layout import Layout
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.plot.plots import current_version
from hmi.stores.profiles import Measured, Profiles
from hmi.stores.records.registry import Registry
from hmi.stores.records.tenant_cache import TenantCache
from hmi.stores.root_files import RootFiles
from hmi.stores.tensors.adapter_pool import Size
from hmi.stores.tensors.adapter_store import AdapterStore, Mapped
from plot_store import Fetching, Reader, Store

log = logging.getLogger("hmi.engine")
IDLE_S = 600.0
"""A root, reader or exact reference is dropped if nothing has used it for this many seconds."""
PIECE_BYTES = 1 << 20
"""A whole root is read in pieces of this size, as far as the budget of reads is concerned."""
OBJECT_BYTES = 100_000
"""Estimated memory of a module's Python objects and mapping. A LoRA on all sites takes most of this."""
V = TypeVar("V")
Key = tuple[str, ...]
"""The name of a part: its kind, then its name among parts of that kind."""


@dataclass(frozen=True)
class TaskPart:
    """A tenant's module with its head and what else its artefact holds, in memory.

    An embedding has no head. Lexical features and transitions are optional.
    """

    module: TenantModule
    head: Head | None
    lexical: Lexical | None
    transitions: Tensor | None
    own_bytes: int = 0
    """Private memory without the executors' forms of the module."""
    mapped: Mapped | None = None
    """The file that the module's tensors are views of."""
    ramps: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """The tensors of each ramp in fp32 (`head_from`), by the upper layer before which it is. They are copies:
    only executors read the file later."""
    prompts: Mapping[int, Tensor] = field(default_factory=dict)
    """The sets of prompts in fp32 [layers, count, dim], by their count (`copied_prompts`)."""
    own_texts: OwnTexts | None = None
    """What it keeps of its own texts, in fp32; None: nothing."""
    _at_ramp: dict[int, TaskPart] = field(default_factory=dict, compare=False)

    def at_ramp(self, site: int) -> TaskPart:
        """The same model with a ramp in place of its head. The ramp is made when it is first asked: most
        models are never asked for one."""
        found = self._at_ramp.get(site)
        if found is None:  # two threads may both make it
            found = self._at_ramp[site] = replace(self, head=head_from(self.ramps[site]), _at_ramp={})
        return found

    def ready(self, prepare: Callable[[TenantModule], int], executor: Executor | None = None) -> None:
        """Let an executor make its form of the module. Afterwards only other executors read the file.

        executor: the one by whose sizes prompts are checked; None: they are not. Raises Damaged if the
        module or its prompts are not of the root's sizes.
        """
        if executor is not None and self.prompts:
            check_prompts(self.prompts, executor.layers, executor.space(0).shape[1])
        try:
            prepare(self.module)
        except ValueError as error:
            raise Damaged(
                f"a tenant's module does not fit its root ({error}): roll back or fine-tune again"
            ) from error
        if self.mapped is not None:
            self.mapped.rest()
            self.module.forms.check = self.mapped.check

    @property
    def size(self) -> Size:
        return Size(self.own_bytes + self.module.forms.bytes, 0 if self.mapped is None else self.mapped.bytes)


@dataclass(frozen=True)
class Upper:
    """A root in memory, and the executor of its upper layers."""

    root: Root
    executor: Chosen


@dataclass(frozen=True)
class Bundle:
    """The parts that answer a text, except module and head. Those two are held in memory while the text's
    batch runs."""

    model: ModelId
    version: ModelVersion
    root: Root
    executor: Executor
    reader: Reader
    task: TaskKind
    lower: LocalLower | None = None
    """The lower layers behind the PLOT; None unless the request is for the exact reference."""
    objective: Objective = field(default_factory=Objective)
    cascade: Cascade | None = None
    known_share: float | None = None
    """The share of its own texts that the model is to know; None: it never says that it does not know."""
    bits: int = 0
    """The bits of the shards that its texts may run on (`hmi.engine.admit.streamed`); 0: they run on exact
    weights."""

    @cached_property
    def only_tokens(self) -> Objective:
        """The objective of a text that no exit may answer. It may be merged within what is not granted to the
        cascade that it comes from."""
        least, agreement = self.objective.agreement_under_load, self.objective.agreement
        if least is not None and agreement is not None:
            least = min(MAX_AGREEMENT, least + 1.0 - agreement)
        return Objective(agreement_under_load=least)

    @cached_property
    def known_at(self) -> float | None:
        """The similarity from which on the model knows a text; None: it never says that it does not."""
        return threshold_of(self.version.known, self.known_share)

    @cached_property
    def key(self) -> BatchKey:
        """The key of the batches that its texts may run in."""
        root = self.version.root, self.version.root_version
        reads: Literal["cls", "rows"] = "cls" if self.task.reads == "cls" else "rows"
        return BatchKey(root, reads, exact=self.lower is not None, bits=self.bits)


@dataclass(frozen=True)
class WritingBundle:
    """The parts that write a text, except the module."""

    model: ModelId
    version: ModelVersion
    writer: Writer
    reader: Reader


@dataclass(frozen=True)
class Part(Generic[V]):
    """A root, PLOT reader or lower layers. Bundles share a part, since it takes long to load."""

    key: Key
    cache: IdleCache[Key, V]
    make: Callable[[], V]

    def now(self) -> V | None:
        """Return the part if it is in memory, else None."""
        return self.cache.peek(self.key)

    def load(self) -> V:
        """Load the part and put it into the cache. Raises what `make` raises."""
        return self.cache.put(self.key, self.make())


class Bundles:
    """The parts that bundles are made of: loaded roots, open PLOT readers, lower layers. Thread-safe.

    A load may take seconds. The caller (`hmi.engine.admit.loading`) runs it on a thread of its own, once for
    everyone who waits. Loads raise NotFound, Damaged, Unavailable, and plot_store's errors.
    """

    def __init__(
        self,
        data: Path,
        registry: Registry,
        plots: Store,
        adapters: AdapterStore,
        lowers: AdapterStore,
        precision: str = "auto",
        device: str = "cpu",
        device_bytes: int = 0,
        root_bytes: int = 0,
        io_bytes_per_s: int = 0,
        shards: bool = True,
        writing_bytes: int = 1 << 26,
        guesses: bool = True,
        roots: RootFiles | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        """root_bytes, io_bytes_per_s, writing_bytes: the settings. shards: False if texts may only run on
        exact weights. guesses: whether models that write may read guessed tokens. roots, fetching: what to
        find the roots' files and to read PLOTs with; None: they are in the data folder."""
        self._shards, self._root_bytes = Shards(IoBudget(io_bytes_per_s)), root_bytes
        self._fewer_bits = shards
        self._layout, self._registry, self._plots = Layout(data), registry, plots
        self._roots, self._reads = roots or RootFiles(self._layout), fetching or plots
        self._adapters, self._lowers, self._precision = adapters, lowers, precision
        self._device, self._device_bytes = device, device_bytes
        self._tenants = TenantCache(registry)
        self._uppers: IdleCache[Key, Upper] = IdleCache(16, IDLE_S)
        # An open reader keeps its version from collection, so an unused one must not stay.
        self._readers: IdleCache[Key, Reader] = IdleCache(1024, IDLE_S)
        self._earlies: IdleCache[Key, Upper] = IdleCache(16, IDLE_S)
        self._exact: IdleCache[Key, LocalLower] = IdleCache(2, IDLE_S)
        self._writers: IdleCache[Key, Writer] = IdleCache(16, IDLE_S)
        self._writing_bytes, self._guesses = writing_bytes, guesses

    def record(self, model: ModelId) -> ModelRecord:
        """Return the model's record; `live` is its version that answers. Raises NotFound, Damaged."""
        return self._registry.model(model)

    def weight(self, tenant: str) -> float:
        """The tenant's weight; see `TenantCache.weight`."""
        return self._tenants.weight(tenant)

    def upper(self, version: ModelVersion) -> Part[Upper]:
        key = "root", version.root, version.root_version
        return Part(key, self._uppers, lambda: self._load_upper(version))

    def writer(self, version: ModelVersion) -> Part[Writer]:
        key = "writer", version.root, version.root_version
        return Part(key, self._writers, lambda: self._load_writer(version))

    def writers(self) -> list[Writer]:
        """Return the writers in memory."""
        return self._writers.values()

    def early(self, record: ModelRecord, *, exact: bool) -> Part[Upper] | None:
        """The root's upper layers on shards, for the time until `upper` is loaded; None if the texts must
        wait for that: the model allows no other answers, or its shards do not keep the agreement that it
        wants."""
        version = record.live
        bits = None if exact else self._allowed(record)
        if bits is None or self._low(version) or self._fits_not(version):
            return None
        key = "shards", version.root, version.root_version, str(bits)
        return Part(key, self._earlies, lambda: Upper(*self._shards.early(self._folder(version), bits)))

    def bits(self, record: ModelRecord, upper: Upper) -> int:
        """Return the bits on which the model's texts may run in this form of its root; 0: on exact
        weights."""
        if not isinstance(upper.executor, Streamed):
            return 0
        least, bits = self._allowed(record), upper.executor.bits
        return bits if least is not None and bits >= least else 0

    def _allowed(self, record: ModelRecord) -> int | None:
        agreement = record.objective.agreement_under_load if self._fewer_bits else None
        return self._shards.bits(self._folder(record.live), record.live.artefact, agreement)

    def _low(self, version: ModelVersion) -> bool:
        return self._fewer_bits and self._registry.root(version.root).priority == "low"

    def _fits_not(self, version: ModelVersion) -> bool:
        """Return whether the root has to be served from shards: with the other roots in memory it exceeds
        `root_bytes`."""
        if not self._root_bytes:
            return False
        mine = version.root, version.root_version
        others = {(name, of) for _, name, of in self._uppers.keys()} - {mine}  # noqa: SIM118 (a cache)
        return sum(self._upper_bytes(root) for root in (mine, *others)) > self._root_bytes

    def _upper_bytes(self, root: tuple[str, str]) -> int:
        try:
            return (self._layout.root(*root) / "upper.safetensors").stat().st_size
        except OSError:
            return 0  # it was deleted

    def reader(self, version: ModelVersion) -> Part[Reader]:
        key = "plot", version.plot_version
        return Part(key, self._readers, lambda: self._reads.reader(version.plot_version))

    def lower(self, version: ModelVersion, upper: Upper, reader: Reader) -> Part[LocalLower]:
        """The lower layers behind a PLOT, which only the exact reference computes.

        Several domains may share them, so the error for a damaged file names it by its hash.
        """
        name = PlotMeta.of(reader.version).lower
        key = "lower", version.root, version.root_version, name or ""
        return Part(key, self._exact, lambda: self._load_lower(version, upper.root, name))

    def load_task_part(self, artefact: str) -> TaskPart:
        """Map an artefact's module into memory, and copy its head and the rest in fp32."""
        mapped = self._adapters.map(artefact)
        self._shards.budget.spend(mapped.bytes)
        found = Artefact.split(mapped.tensors)
        table = found.transitions.get("table")
        parts = found.head, found.lexical, found.transitions, found.ramps, found.prompts, found.known
        copied = [tensor for part in parts for tensor in part.values()]
        unpacked = [v for k, v in found.module.items() if mapped.tensors[f"module.{k}"].dtype == torch.int8]
        return TaskPart(
            module_from(found.module),
            head_from(found.head) if found.head else None,
            lexical_from(dict(found.lexical)) if found.lexical else None,
            None if table is None else table.clone(),
            OBJECT_BYTES + sum(4 * v.numel() for v in copied) + sum(v.nbytes for v in unpacked),
            mapped,
            copied_ramps(found.ramps),
            copied_prompts(found.prompts),
            OwnTexts.of({name: tensor.float().numpy() for name, tensor in found.known.items()}),
        )

    def mark(self, artefact: str) -> object:
        """See `AdapterStore.mark`."""
        return self._adapters.mark(artefact)

    def forget(self, roots: Collection[str] = (), plots: Collection[str] = ()) -> None:
        """Drop these roots, with what belongs to them, and the readers of these PLOT versions.

        Requests in flight keep what they use until they are answered. Thread-safe.
        """
        for cache in (self._uppers, self._earlies, self._exact, self._writers):
            cache.drop(lambda key: key[1] in roots)
        self._readers.drop(lambda key: key[1] in plots)
        if roots:
            give_back_memory()

    def gone(self, version: ModelVersion) -> tuple[list[str], list[str]]:
        """Return the version's root and PLOT version as arguments of `forget`, each only if it has been
        deleted."""
        roots = {record.name for record in self._registry.roots(tolerant=True)}
        domain_gone = current_version(self._plots, version.domain) is None
        return [] if version.root in roots else [version.root], [version.plot_version] if domain_gone else []

    def executors(self) -> list[tuple[str, str, tuple[Measured, ...], str | None]]:
        """Return for each root in memory: its name, its executor's name, the measured times that chose it,
        and why its device is not used any more (None: it is, or there was none)."""
        found = [(upper.root.info.name, upper.executor) for upper in self._uppers.values()]
        return [(name, chosen.name, chosen.measured, chosen.fault) for name, chosen in found]

    def warm(self) -> None:
        """Load what the first text on shards would wait for, if a root has shards."""
        if any(root.shards is not None for root in self._registry.roots(tolerant=True)):
            load_codec()

    def close(self) -> None:
        """Drop all parts. Waits for the end of an executor's measurement, if one is under way."""
        for upper in (*self._uppers.values(), *self._earlies.values()):
            upper.executor.close()
        self._earlies.clear()
        self._readers.clear()
        self._uppers.clear()
        self._exact.clear()
        self._writers.clear()

    def _load_writer(self, version: ModelVersion) -> Writer:
        folder = self._fetched(version)
        self._paced(folder)
        root = load_generative_root(folder)
        on_device = self._device, self._device_bytes
        executor = step_executor(root.upper, self._precision, self._writing_bytes, *on_device)
        return Writer(root, executor, guesses=self._guesses)

    def _load_upper(self, version: ModelVersion) -> Upper:
        low, folder = self._low(version), self._fetched(version)
        if low or self._fits_not(version):
            with suppress(NotFound):
                return Upper(
                    *(self._shards.small(folder) if low else self._shards.limited(folder, self._root_bytes))
                )
            log.warning(
                "root %s is loaded whole: it has no shards ('hmi root shards' makes them)", version.root
            )
        self._paced(folder)
        root = load_root(folder)
        profiles, device, size = Profiles(self._layout), self._device, self._device_bytes
        executor = executor_for(root, self._precision, profiles, device=device, device_bytes=size)
        self._earlies.drop(lambda key: key[1:3] == (version.root, version.root_version))
        return Upper(root, executor)

    def _paced(self, folder: Path) -> None:
        """Pay for the read of a whole root, in pieces, so that shards and modules are read between them."""
        budget = self._shards.budget
        if budget.bytes_per_s:
            for name in SERVED:
                for _ in range(0, (folder / name).stat().st_size, PIECE_BYTES):
                    budget.spend(PIECE_BYTES)

    def _load_lower(self, version: ModelVersion, root: Root, name: str | None) -> LocalLower:
        if name is None:
            lower = load_root(self._fetched(version, lower=True), with_lower=True).lower
            assert lower is not None
            return lower
        return lower_from(self._lowers.get(name), root.info, root.tokenizer.cls_id)

    def _fetched(self, version: ModelVersion, *, lower: bool = False) -> Path:
        """The folder of the version's root. It may take long: it is fetched if it is not here."""
        return self._roots.folder(version.root, version.root_version, lower=lower)

    def _folder(self, version: ModelVersion) -> Path:
        """The same, which may lack files or be missing."""
        return self._layout.root(version.root, version.root_version)
