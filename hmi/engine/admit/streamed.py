"""Roots that run on shards: while the whole root is being loaded, or because it does not fit into memory."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from hmi.errors import HmiError
from hmi.execution.base import Executor
from hmi.execution.batch import BatchKey
from hmi.execution.choose import Chosen
from hmi.execution.packed import PackedExecutor
from hmi.model.sources.root import Root, read_root_info
from hmi.model.text.tokenizer import Tokenizer
from hmi.stages.early_exit.evidence import upper_bound
from hmi.stages.elastic_shards.codec import Dictionary, LayerBuffer, LayerCodec, LayerCut, ShardedLayer
from hmi.stages.elastic_shards.fidelity import ERROR, FILE, Fidelity, read_fidelity
from hmi.stages.elastic_shards.io_budget import IoBudget
from hmi.stages.elastic_shards.making import FOLDER
from hmi.stages.elastic_shards.pipeline import Ref
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.versions import BITS, FULL
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.engine")
LOW_AGREEMENT = 0.95
"""The agreement of all models together that decides about the bits of a root of low priority."""
AHEAD, EXACT_AHEAD = 2, 1
"""Layers of a root beyond the memory limit that are read, or in reading, and not computed yet: of few bits,
and exact ones, of which each takes as much memory as a decoded one."""


class Streamed(Chosen):
    """A root's executors on shards: of `bits` for the texts that may have them, exact ones for all others."""

    def __init__(
        self, store: ShardStore, bits: int, planned: ShardWeights, exact: ShardWeights | None
    ) -> None:
        """exact: None if only texts that may have fewer bits come."""
        shape = store.info.shape
        some = PackedExecutor(planned, shape)
        super().__init__(some if exact is None else PackedExecutor(exact, shape))
        self.take(some, f"shards of {bits} bits", ())
        self.bits, self.planned, self.exact = bits, planned, exact
        # A root is dropped by dropping the last reference; its files and thread must end then.
        self._end = weakref.finalize(self, _close, [w for w in (planned, exact) if w is not None])

    @property
    def precision(self) -> str:
        return "fp32"

    def close(self) -> None:
        """End the reading. A batch under way fails with Unavailable."""
        self._end()

    def _for(self, key: BatchKey) -> Executor:
        return self._best if key.bits else self._reference


def _close(weights: Sequence[ShardWeights]) -> None:
    for each in weights:
        each.close()


class Shards:
    """The shards of a data folder's roots, and what is known about them. Thread-safe."""

    def __init__(self, budget: IoBudget) -> None:
        self.budget = budget
        self._known: dict[Path, tuple[int, Fidelity]] = {}
        """The time at which a folder's file was written, and its contents, by folder."""
        self._lock = threading.Lock()

    def bits(self, folder: Path, artefact: str, agreement: float | None) -> int | None:
        """Return the fewest bits with which the model keeps its agreement under load (`Fidelity.bits`); None
        if the root in `folder` has no usable shards."""
        return None if agreement is None else self.known(folder).bits(artefact, agreement)

    def known(self, folder: Path) -> Fidelity:
        """Return what was measured of the root in `folder`. It is read again when a job has written it."""
        try:
            written = (folder / FOLDER / FILE).stat().st_mtime_ns
        except OSError:
            return Fidelity()
        with self._lock:
            found = self._known.get(folder)
            if found is None or found[0] != written:
                found = self._known[folder] = written, self._read(folder)
        return found[1]

    @staticmethod
    def _read(folder: Path) -> Fidelity:
        try:
            with open_shards(folder) as store:
                return read_fidelity(folder, store)
        except HmiError as error:
            log_failure(log, f"the shards of root {folder.parent.name} cannot be used", error)
            return Fidelity()

    def early(self, folder: Path, bits: int) -> tuple[Root, Streamed]:
        """Open a root that streams in: what has been read stays in memory. Raises Damaged, Unavailable."""
        store = open_shards(folder)
        planned = ShardWeights(store, uniform(store, bits), budget=self.budget, keep=True)
        return root_of(folder, store), Streamed(store, bits, planned, None)

    def limited(self, folder: Path, limit: int) -> tuple[Root, Streamed]:
        """Open a root in at most `limit` bytes, besides what is always in memory.

        As many bits stay in memory as there is room for. Texts that may not have them run on exact shards,
        which are read for each batch. Raises NotFound (no shards), Damaged, Unavailable.
        """
        store = open_shards(folder)
        bits, held = kept_within(store, limit - working_bytes(store))
        return self._resident(folder, store, bits, held)

    def small(self, folder: Path) -> tuple[Root, Streamed]:
        """Open a root of low priority: all its shards stay in memory, in the fewest bits with which its
        models agree in LOW_AGREEMENT of their answers, or in the most. Raises as `limited` does."""
        known = self.known(folder)
        agreed = (b for b in BITS if upper_bound(known.pooled(b), ERROR) <= 1 - LOW_AGREEMENT)
        bits = next(agreed, BITS[-1])
        store = open_shards(folder)
        held = [ref for layer in uniform(store, bits) for ref in layer]
        return self._resident(folder, store, bits, held)

    def _resident(
        self, folder: Path, store: ShardStore, bits: int, held: Sequence[Ref]
    ) -> tuple[Root, Streamed]:
        budget = self.budget
        planned = ShardWeights(store, uniform(store, bits), held, budget=budget, ahead=AHEAD)
        exact = ShardWeights(store, uniform(store, FULL), budget=budget, ahead=EXACT_AHEAD, beside=planned)
        return root_of(folder, store), Streamed(store, bits, planned, exact)


def load_codec() -> None:
    """Load the compiled functions that decode shards, before a text waits for them."""
    cut = LayerCut.plain(dim=16, heads=2, ffn=16)
    zeros = ShardedLayer(*(np.zeros(size, np.float32) for size in ((48, 16), (16, 16), (16, 16), (16, 16))))
    codec, buffer = LayerCodec([cut.weights_of(zeros, shard) for shard in range(2)]), LayerBuffer(cut)
    for bits in (*BITS, FULL):
        table, blobs = codec.encoded(bits)
        buffer.decode(0, bits, blobs[0], None if bits == FULL else Dictionary(table).pairs)


def working_bytes(store: ShardStore) -> int:
    """Return the bytes that a batch takes: one decoded layer, its reordered copy, and an exact one that is
    read."""
    return 3 * store.full_bytes // len(store.layers)


def kept_within(store: ShardStore, room: int) -> tuple[int, list[Ref]]:
    """Return the most bits with which all shards fit, and these shards; the fewest bits, and the first shards
    in the order of the layers that fit, if there is not even room for those."""
    for bits in reversed(BITS):
        refs = [ref for layer in uniform(store, bits) for ref in layer]
        if sum(store.size(*ref) for ref in refs) <= room:
            return bits, refs
    held = []
    for ref in (ref for layer in uniform(store, BITS[0]) for ref in layer):
        room -= store.size(*ref)
        if room < 0:
            break
        held.append(ref)
    return BITS[0], held


def root_of(folder: Path, store: ShardStore) -> Root:
    """Return the root without upper layers, which its executor has. Raises Damaged, Unavailable."""
    from hmi.model.checked import ROOT_CURE, check_file
    from hmi.model.sources.lower import InputBias

    info = read_root_info(folder)
    check_file(
        folder / "tokenizer.json", info.files.get("tokenizer.json"), f"root {info.name}", cure=ROOT_CURE
    )
    bias = InputBias(info.shape, info.split)
    bias.load_state_dict(store.bias)
    return Root(info, nn.ModuleList(), bias.requires_grad_(False), Tokenizer(folder / "tokenizer.json"))
