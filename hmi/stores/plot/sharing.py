"""PLOTs in the bucket that nodes share. The primary puts them there, and replicas take them from there.

The bucket has what the registry names: a version goes there before a model or root that needs it is recorded,
and a domain's ref follows the primary's. Without a bucket nothing happens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import plot_store
from hmi.core import ModelRecord
from hmi.errors import HmiError, NotFound, StorageFull, Unavailable
from hmi.stores.bucket import Bucket
from hmi.stores.plot.plots import plot_errors
from hmi.stores.records.table import MODEL, parsed
from plot_store import Fetching, Remote, Store

log = logging.getLogger("hmi.stores")
PAUSE_S = 2.0
"""Pause between two attempts beside a collection."""


def share(
    plots: Store, bucket: Bucket | None, ref_or_id: str, sure: Callable[[], bool], patience_s: float = 10.0
) -> None:
    """Bring a ref to the bucket as it is here, or only a version, by its id. What is there is not sent again.

    sure: tells whether this node is the primary beyond doubt, or has the job that brings it. Another node
    may have published a version of the ref that this one has never had, as the last primary's jobs may do;
    the primary's counts. patience_s: how long to wait for a collection that runs there. Raises NotFound,
    Damaged; Unavailable, also if this is not the primary; Conflict if a collection still runs.
    """
    if bucket is None:
        return
    if not sure():
        raise Unavailable(
            f"this server is no longer the primary, or has lost its job, so {ref_or_id} is not shared"
        )
    remote, end = Remote(bucket.plots), time.monotonic() + patience_s
    with plot_errors():
        try:
            plots.push(ref_or_id, bucket.plots)
        except plot_store.Conflict:
            if remote.collecting() and time.monotonic() < end:
                time.sleep(PAUSE_S)
                share(plots, bucket, ref_or_id, sure, end - time.monotonic())
                return
            there = remote.refs().get(ref_or_id)
            if there is None:
                raise
            # If this node had it, an earlier push has not lived to record that it was done.
            plots.push(ref_or_id, bucket.plots, expect=there)


def shared_refs(bucket: Bucket | None) -> dict[str, str]:
    """The refs in the bucket, and the ids of their versions; none without a bucket. Raises Unavailable,
    Damaged."""
    if bucket is not None:
        with plot_errors(), suppress(plot_store.NotFound):  # nobody has shared anything yet
            return Remote(bucket.plots).refs()
    return {}


def is_shared(bucket: Bucket | None, version: str) -> bool:
    """Return whether the bucket has a version, by its id. Raises Unavailable."""
    with plot_errors():
        return bucket is not None and Remote(bucket.plots).has(version)


def withdraw(bucket: Bucket | None, ref: str) -> None:
    """Remove a ref from the bucket; call it before it is removed here. Raises Unavailable, Damaged."""
    if bucket is not None:
        with plot_errors(), suppress(plot_store.NotFound):
            Remote(bucket.plots).delete(ref)


def share_late(
    plots: Store, bucket: Bucket | None, needed: Collection[str], sure: Callable[[], bool]
) -> None:
    """Bring what is here and not in the bucket there: refs that have moved since they were last there, and
    versions. needed: ids of the versions that models are on. Failures are logged."""
    if bucket is None:
        return
    with plot_errors():
        agreed, heads = plots.agreed(bucket.plots), plots.heads()
    late = sorted(ref for ref, head in heads.items() if agreed.get(ref) != head)
    for done, ref in enumerate(late, 1):
        log.info("bringing %s to the bucket (%d of %d)", ref, done, len(late))
        with _logged():
            share(plots, bucket, ref, sure)
    for version in sorted(set(needed) - set(heads.values())):
        with _logged():
            if _had(plots, version):
                share(plots, bucket, version, sure)


def adopt(plots: Store, bucket: Bucket, needed: Collection[str]) -> None:
    """Take what a new primary lacks from the bucket, at its start.

    The bucket decides what refs are at, unless this node has published later versions. needed: ids of the
    versions that models are on; they are here afterwards. Damaged and missing ones are logged. Raises
    Unavailable, StorageFull.
    """
    with plot_errors():
        agreed, here = plots.agreed(bucket.plots), plots.heads()
    there = shared_refs(bucket)
    late = sorted(ref for ref, version in there.items() if here.get(ref) != version)
    for done, ref in enumerate(late, 1):
        log.info("taking %s from the bucket (%d of %d)", ref, done, len(late))
        with _logged():
            _take(plots, bucket, ref, there[ref])
    for ref in sorted(here.keys() & agreed.keys() - there.keys(), reverse=True):
        log.info("removing %s, which another node has removed", ref)
        with _logged(), plot_errors():
            plots.delete(ref)
    for version in sorted(set(needed) - set(there.values())):
        with _logged(), plot_errors():
            if not _had(plots, version):
                plots.pull(version, bucket.plots)
    with plot_errors():
        plots.fetching(bucket.plots).release(())  # this node's collections keep what models are on


def follow_erasures(plots: Store, reads: Fetching, needed: Collection[str]) -> set[str]:
    """Erase from a replica's PLOTs what the primary erased.

    reads: what the engine reads with. needed: ids of the versions that models are on; the others that came
    from the bucket go. Returns the ids of the versions that changed: open readers of them show the n-grams
    until they close. Raises Unavailable, Damaged, StorageFull; Conflict if a version that no model is on has
    the n-grams, and a reader still holds it: call it again later.
    """
    with plot_errors():
        if reads.release(needed):
            plots.gc(keep=needed)
        try:
            return reads.follow_erasures()
        except plot_store.NotFound:  # nobody has shared anything yet
            return set()
        except plot_store.Conflict:
            plots.gc(keep=needed, keep_versions=1)
            return reads.follow_erasures()


def plots_in_use(place: str) -> set[str]:
    """The ids of the versions that models are on, if `place` is the PLOTs of a bucket; else none.

    Raises Unavailable, Damaged.
    """
    whole = place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())
    bucket, _, part = whole.rpartition("/")
    if part != "plots":
        return set()
    try:
        state = Bucket(bucket).journal.state()
    except NotFound:  # it is a remote of its own
        return set()
    models = (parsed(key, body, ModelRecord) for key, body in state.items() if key.startswith(MODEL))
    return {version.plot_version for model in models for version in model.versions}


def _take(plots: Store, bucket: Bucket, ref: str, version: str) -> None:
    with plot_errors():
        try:
            plots.pull(ref, bucket.plots)
        except plot_store.Conflict:
            # Both have moved. What this node has published meanwhile stays among the ref's versions.
            plots.pull(version, bucket.plots)
            plots.rollback(ref, version)


def _had(plots: Store, version: str) -> bool:
    try:
        plots.version(version)
    except plot_store.NotFound as error:
        return isinstance(error, plot_store.Collected)
    return True


@contextmanager
def _logged() -> Iterator[None]:
    """Log what fails, unless everything would fail."""
    try:
        yield
    except (Unavailable, StorageFull):
        raise
    except HmiError as error:
        log.error("%s", error.message)
