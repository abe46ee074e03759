"""An embedded, versioned, crash-safe store of n-gram vectors. docs/plot-store.md is the guide.

with Store.open(path, create=True) as store:
    with store.writer("minilm", schema=Schema(dim=384, vocab=30522), build="b1") as writer:
        writer.add(3, ngrams, rows)
        writer.publish()
    with store.reader("minilm") as reader:
        vectors, hits = reader.lookup(tokens, offsets)
"""

from __future__ import annotations

from plot_store.care.scrub import ScrubProgress, probe, scrub
from plot_store.care.snapshot import Snapshot
from plot_store.counting.counted import Among, CountedNgrams
from plot_store.counting.counter import NgramCounter, merge_counts
from plot_store.counting.misses import MissSketch
from plot_store.environment.pins import Lease, LeaseInfo, Pin
from plot_store.face.fetching import Fetching
from plot_store.face.store import Store
from plot_store.ground.errors import (
    Closed,
    Collected,
    Conflict,
    Damaged,
    Forked,
    FormatTooNew,
    InUse,
    Invalid,
    NotFound,
    PlotStoreError,
    ReadOnly,
    StoreFull,
    StoreIO,
)
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import (
    ORDER_NAMES,
    Damage,
    EraseReport,
    GcReport,
    Hits,
    Schema,
    SegmentInfo,
    StoreInfo,
    Transfer,
    VerifyReport,
    VersionInfo,
    VersionMeta,
)
from plot_store.reading.backoff import Backoff
from plot_store.reading.device import DeviceHits, DeviceReader
from plot_store.reading.diff import DiffReport, OrderDiff
from plot_store.reading.fallback import differences, fallbacks
from plot_store.reading.reader import Reader
from plot_store.remote.collect import RemoteGcReport
from plot_store.remote.remote import Remote
from plot_store.writing.sizes import disk_bytes, entries_within, entry_bytes
from plot_store.writing.writer import ANY, AS_OPENED, Writer

__all__ = [
    "ANY",
    "AS_OPENED",
    "ORDER_NAMES",
    "Among",
    "Backoff",
    "Closed",
    "Collected",
    "Conflict",
    "CountedNgrams",
    "Damage",
    "Damaged",
    "DeviceHits",
    "DeviceReader",
    "DiffReport",
    "EraseReport",
    "Fetching",
    "Forked",
    "FormatTooNew",
    "GcReport",
    "Hits",
    "InUse",
    "Invalid",
    "Lease",
    "LeaseInfo",
    "Limits",
    "MissSketch",
    "NgramCounter",
    "NotFound",
    "OrderDiff",
    "Pin",
    "PlotStoreError",
    "ReadOnly",
    "Reader",
    "Remote",
    "RemoteGcReport",
    "Schema",
    "ScrubProgress",
    "SegmentInfo",
    "Snapshot",
    "Store",
    "StoreFull",
    "StoreIO",
    "StoreInfo",
    "Transfer",
    "VerifyReport",
    "VersionInfo",
    "VersionMeta",
    "Writer",
    "differences",
    "disk_bytes",
    "entries_within",
    "entry_bytes",
    "fallbacks",
    "merge_counts",
    "probe",
    "scrub",
]
