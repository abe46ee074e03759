"""Roots and their shards. A job imports them; they are deleted only if no domain or model uses them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hmi.core import DeletedParts, DomainId, JobRecord, RootRecord, check_name
from hmi.errors import Conflict, InvalidInput, Unavailable
from hmi.jobs.checks import checked_corpus
from hmi.jobs.options import ImportRootOptions
from hmi.jobs.specs import ImportRootSpec, ShardRootSpec
from hmi.manager.domains import DomainOperations
from hmi.manager.parts import Parts, checked_alpha, checked_options
from hmi.stores.plot.plots import current_version
from hmi.stores.profiles import Profiles
from hmi.stores.records.registry import Registry
from hmi.stores.root_files import RootFiles


class _RootShards:
    """The operations on roots' shards.

    A job makes and measures them. A root's priority says whether only they are kept in memory.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def make(self, name: str, text: Path | bytes | None = None, importance: bool = False) -> JobRecord:
        """Cut a root's upper layers into shards, on which it can run before it is loaded and within less
        memory.

        text: lines by which the agreement of the root's models with fewer bits is measured. importance: does
        nothing; the job's record says so. Raises NotFound, Conflict (a job is at work on the root),
        StorageFull.
        """
        if self._parts.registry.root(name).generates:
            raise Conflict(f"root {name!r} is a language model, which has no shards", field="root")
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


class RootOperations:
    """The operations on roots."""

    def __init__(self, parts: Parts, domains: DomainOperations) -> None:
        self._parts, self._domains = parts, domains
        self.profiles, self.shards = Profiles(parts.layout), _RootShards(parts)

    def import_root(
        self,
        name: str,
        source: str,
        split: int | None,
        texts: Mapping[str, Path | bytes],
        alpha: float,
        options: Mapping[str, Any] | None,
    ) -> JobRecord:
        """See `Manager.import_root`. Importing a damaged root's own source under its name
        repairs the root."""
        check_name(name, "root")
        checked = checked_options(ImportRootOptions, options)
        if split is not None and (isinstance(split, bool) or split < 0):
            raise InvalidInput(
                f"split = {split} is impossible: give the number of layers to replace, or 0 for none",
                field="split",
            )
        record = next((r for r in self._parts.registry.roots() if r.name == name), None)
        found, generates = _resolved(source)
        _check_useful(options or {}, record.split if record and split is None else split, generates)
        spec = ImportRootSpec(
            name=name, source=found, split=split, alpha=checked_alpha(alpha), options=checked
        )
        if record is not None:
            spec = spec.model_copy(update=self._repair(record, found, split, options or {}))
        for text in texts.values():
            checked_corpus(text, field="text", encoding=checked.encoding)
        self.drop_stray(name)
        self.profiles.drop(name)
        return self._parts.runner.submit("import_root", spec.stored(), inputs=texts)

    def _repair(
        self, record: RootRecord, source: str, split: int | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The fields that turn the spec of an import into a repair of the damaged root `record`.
        Raises Conflict if its files are sound, or if the import would make another root."""
        from hmi.model.sources.root import verify_root  # imports torch, which takes seconds
        from hmi.model.sources.source import find_source, must_be_fetched

        known = f"root {record.name!r} exists already"
        if not verify_root(self._parts.roots.folder(record.name, record.version)):
            raise Conflict(f"{known}, and its files are sound: choose another name", field="root")
        # If the source must be downloaded first, the job compares it.
        if not must_be_fetched(source) and find_source(source).sha256 != record.source.get("sha256"):
            raise Conflict(
                f"{known} and is damaged, but was made from {record.source.get('name')}, which has "
                "other weights: give its own source to repair it, or choose another name",
                field="source",
            )
        if split not in (None, record.split) or options.get("n", record.n) != record.n:
            raise Conflict(
                f"{known} and is damaged, but was made with split {record.split} and n = {record.n}: "
                "leave them out to repair it, or choose another name",
                field="split" if split not in (None, record.split) else "options.n",
            )
        made = {"n": record.n} if record.split else {}
        checked = checked_options(ImportRootOptions, {**options, **made})
        return {"split": record.split, "options": checked, "repairs": record.version}

    def delete(self, name: str) -> None:
        """Remove a root, its PLOT and its files. Raises NotFound, Conflict (which names the domains
        and models on it)."""
        record = self._parts.registry.root(name)
        self._domains.drop(DomainId((name,)))
        self._parts.registry.delete_root(name)
        self._parts.tell_deleted(DeletedParts(roots=frozenset([name])))
        with suppress(FileNotFoundError):
            shutil.rmtree(self._parts.layout.roots / name)
        with suppress(Unavailable):  # the hourly collection makes up for it
            self._parts.roots.remove(name, record.version)
        self.profiles.drop(name)

    def drop_stray(self, name: str) -> bool:
        """Remove the PLOT of an import that failed before the root was published. Returns whether
        there was one."""
        with suppress(Conflict):  # an import is at work on it
            known = {root.name for root in self._parts.registry.roots()}
            if name not in known and current_version(self._parts.plots, name) is not None:
                self._domains.drop(DomainId((name,)))
                return True
        return False


def export_locality(
    registry: Registry, roots: RootFiles, name: str, path: Path, source: str | None
) -> tuple[str, int]:
    """Write a root's locality weights to `path`. Returns the name under which they would ship with
    HMI, and their size in bytes.

    source: the path of the source model if it is not found by its recorded name. Raises NotFound,
    Conflict (another source), UnsupportedModel, Damaged, StorageFull.
    """
    # These import torch, which takes seconds.
    from hmi.model.sources.generative_root import load_for_building
    from hmi.model.sources.locality import locality_name, save_difference
    from hmi.model.sources.source import find_source

    record = registry.root(name)
    if not record.split:
        raise Conflict(f"root {name} has no locality weights: it computes all layers", field="root")
    root = load_for_building(roots.folder(name, record.version))
    about = root.info.source
    found = find_source(about.get("folder", about["name"]) if source is None else source)
    return locality_name(found.sha256, record.split, record.n), save_difference(path, root, found)


def _check_useful(options: Mapping[str, Any], split: int | None, generates: bool) -> None:
    """Raise InvalidInput if an option does nothing. split: of the root; None: the default."""
    if split == 0 or (generates and split is None):
        idle, where = set(options) - {"seed", "encoding"}, "with split = 0, where nothing is learnt"
    else:
        idle, where = (
            set(options) & ({"steps", "upper_steps"} if generates else set()),
            "for a language model",
        )
    if idle:
        first = min(idle)
        raise InvalidInput(f"options.{first} is of no use {where}: leave it out", field=f"options.{first}")


def _resolved(source: str) -> tuple[str, bool]:
    """The source in a form that a job in another process can find, and whether it is known to be a language
    model. Raises UnsupportedModel if it cannot be imported."""
    # This imports torch, which takes seconds.
    from hmi.model.sources.source import find_source, is_local, must_be_fetched

    folder = Path(source)
    with suppress(RuntimeError):  # no such user
        folder = folder.expanduser()
    if is_local(folder):
        source = str(folder.resolve())
    elif must_be_fetched(source):
        # find_source would download it, which is the job's work.
        return source, False
    return source, find_source(source).generates
