"""Roots' shards: a job makes and measures them, and a root's priority says whether only they are kept in
memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hmi.core import JobRecord, RootRecord
from hmi.errors import Conflict
from hmi.jobs.checks import checked_corpus
from hmi.jobs.specs import ShardRootSpec
from hmi.manager.parts import Parts


class RootShards:
    """The operations on roots' shards."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def make(self, name: str, text: Path | bytes | None = None, importance: bool = False) -> JobRecord:
        """Cut a root's upper layers into shards, on which it can run before it is loaded and within less
        memory.

        text: lines by which the agreement of the root's models with fewer bits is measured. importance: does
        nothing; the job's record says so. Raises NotFound, Conflict (a job is at work on the root),
        StorageFull.
        """
        self._parts.registry.root(name)
        if text is not None:
            checked_corpus(text, field="text")
        inputs = {} if text is None else {"text": text}
        spec = ShardRootSpec(name=name, importance=importance)
        return self._parts.runner.submit("shard_root", spec.stored(), inputs=inputs)

    def prioritise(self, name: str, priority: Literal["normal", "low"]) -> RootRecord:
        """Set a root's priority: low keeps only shards of it in memory.

        Raises NotFound, Conflict (it has no shards).
        """
        record = self._parts.registry.root(name)
        if priority == "low" and record.shards is None:
            raise Conflict(f"root {name!r} has no shards: make them first (hmi root shards {name})")
        changed = record.model_copy(update={"priority": priority})
        self._parts.registry.put_root(changed)
        return changed
