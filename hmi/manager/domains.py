"""Domains: branches of a root's version tree, and exports of them. The PLOT store holds their state; this
module holds the rules.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import plot_store
from hmi.core import DeletedParts, DomainId, JobRecord
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.jobs.checks import check_text, checked_corpus
from hmi.jobs.options import BuildPlotOptions
from hmi.jobs.runtime.folders import pinned_here
from hmi.jobs.specs import KEEP, PHRASES, TEXT, BuildPlotSpec, EraseSpec
from hmi.manager.parts import Parts, checked_alpha, checked_options
from hmi.stores.plot.brought import none_brings
from hmi.stores.plot.miss_files import SKETCH, sketch_bytes
from hmi.stores.plot.plot_meta import PlotMeta, lowers_of, samples_of
from hmi.stores.plot.plots import current_version, plot_errors
from hmi.stores.plot.sharing import follow_erasures, withdraw
from hmi.stores.tensors.adapter_store import LOWER_CURE
from plot_store import Fetching, Store, Transfer, VersionInfo

ByteProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def export_domain(parts: Parts, version: str, archive: Path, progress: ByteProgress) -> None:
    """Write a version with all its ancestors to `archive`, and the lower layers of branches that were
    pretrained further. Samples of corpora stay where they are, since they are texts.

    Raises NotFound, Damaged, StorageFull, Unavailable.
    """
    with plot_errors():
        parts.plots.export(version, archive, attached=_lower_files(parts, version), progress=progress)


def import_domain(
    parts: Parts, archive: Path, name: str | None, progress: ByteProgress
) -> tuple[VersionInfo, list[str]]:
    """Import an export.

    Returns the version, and the refs whose lower layers are neither in the export nor in this store
    (earlier releases exported none). Such versions answer, but no build can extend them. Raises
    plot_store's errors and Damaged, StorageFull, Conflict (see `_check_roots`).
    """
    versions = Store.archived(archive)
    _check_roots(parts, versions, str(archive), name)
    lowers = lowers_of(versions)
    for lower, content in Store.attached(archive):
        # Lower layers come before the versions that need them; collection spares what was stored in
        # the last hour.
        if lower in lowers:
            parts.lowers.take_over(lower, content)
    version = parts.plots.import_archive(archive, ref=name, progress=progress)
    _share(parts, version)
    return version, _lacking(parts, lowers)


def push_domain(
    parts: Parts, domain: str, place: str, progress: ByteProgress, expect: str | None, again: bool
) -> Transfer:
    """Push a domain's current version, as `Store.push` does, with the lower layers that an export has.

    Raises plot_store's errors, Damaged, Unavailable.
    """
    while True:
        lowers = _lower_files(parts, domain)
        done = parts.plots.push(domain, place, expect=expect, again=again, attached=lowers, progress=progress)
        if _lower_files(parts, done.version.id).keys() <= lowers.keys():
            return done  # otherwise the domain got a version meanwhile


def pull_domain(
    parts: Parts, domain: str, place: str, progress: ByteProgress, again: bool
) -> tuple[Transfer, list[str]]:
    """Pull a domain, as `Store.pull` does, with its lower layers.

    again: also replace damaged lower layers. Returns what came, and the refs whose lower layers are neither
    there nor in this store, as `import_domain` does. Raises plot_store's errors and Damaged, StorageFull,
    Conflict (see `_check_roots`).
    """

    def accept(versions: list[VersionInfo], attached: Mapping[str, Callable[[], bytes]]) -> None:
        _check_roots(parts, versions, place, None)
        for lower in lowers_of(versions).keys() & attached.keys():
            if again or not parts.lowers.has(lower):
                parts.lowers.take_over(lower, attached[lower]())
            else:
                parts.lowers.spare([lower])

    done = parts.plots.pull(domain, place, again=again, accept=accept, progress=progress)
    _share(parts, done.version)
    return done, _lacking(parts, lowers_of(parts.plots.chain(done.version.id)))


def _share(parts: Parts, version: VersionInfo) -> None:
    """Bring what an import or a pull brought to the bucket: the refs of a version and of its ancestors."""
    for brought in reversed(parts.plots.chain(version.id)):
        parts.share(brought.ref)


def _lower_files(parts: Parts, version: str) -> dict[str, Path]:
    """Return the files of lower layers that a version and its ancestors need, by name.

    Raises plot_store's errors, Damaged (also if one is missing), Unavailable.
    """
    lowers = lowers_of(parts.plots.chain(version))
    for name, ref in lowers.items():
        parts.lowers.check(name, f"domain {ref}'s lower layers", LOWER_CURE)
    return {name: parts.lowers.path(name) for name in lowers}


def _lacking(parts: Parts, lowers: Mapping[str, str]) -> list[str]:
    return sorted(ref for lower, ref in lowers.items() if not parts.lowers.has(lower))


def _check_roots(parts: Parts, versions: list[VersionInfo], place: str, name: str | None) -> None:
    """Raise Conflict unless each version was computed with a root of this data folder.

    A PLOT's rows fit only the upper layers of the import that computed them. name: the first version's ref
    here; None: its own.
    """
    roots = {root.name: root.version for root in parts.registry.roots()}
    for at, version in enumerate(versions):
        root = DomainId.parse(name if at == 0 and name is not None else version.ref).root
        made_on = PlotMeta.of(version).root_version or None
        if made_on is None or roots.get(root) != made_on:
            raise Conflict(
                f"{version.ref} in {place} was computed with version {made_on} of its root, but this data "
                f"folder has {roots.get(root, 'none')} as root {root!r}: take it into the data folder that "
                "it comes from or a copy of that, or create the domain here from its corpus"
            )


SHOWN = 5
DEFAULT_ALPHA = 50.0


@dataclass(frozen=True)
class DomainVersionInfo:
    """One published version of a domain's PLOT. `entries`: order ("3", "2", "1") -> number of
    entries; `bytes`: of its own segments."""

    version: str
    created: str
    entries: dict[str, int]
    bytes: int
    alpha: float | None
    budget_bytes: int | None
    report: dict[str, Any]
    current: bool


@dataclass(frozen=True)
class DomainInfo:
    """A domain as users see it. Versions are newest first. `parent` is None for a root's own PLOT."""

    domain: str
    root: str
    parent: str | None
    current: str
    versions: tuple[DomainVersionInfo, ...]
    children: tuple[str, ...]
    entries: dict[str, int]
    bytes: int
    alpha: float | None
    models: int
    record_misses: bool


class DomainOperations:
    """The operations on domains."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._counted: tuple[int, Counter[str]] | None = None

    def create(
        self,
        domain: str,
        corpus: Path | bytes,
        alpha: float | None,
        pretrain: bool,
        options: Mapping[str, Any] | None,
    ) -> JobRecord:
        branch = DomainId.parse(domain)
        if branch.parent is None:
            raise InvalidInput(
                f"{domain!r} has no branch: name a domain root/branch, or import a root", field="domain"
            )
        if current_version(self._parts.plots, str(branch)) is not None:
            raise Conflict(
                f"domain {branch} exists already: update it, or choose another name", field="domain"
            )
        if current_version(self._parts.plots, str(branch.parent)) is None:
            raise NotFound(
                f"the parent of {branch} does not exist: create {branch.parent} first", field="domain"
            )
        return self._submit(branch, "create", corpus, alpha, pretrain, options, None)

    def update(
        self,
        domain: str,
        corpus: Path | bytes,
        alpha: float | None,
        pretrain: bool,
        options: Mapping[str, Any] | None,
    ) -> JobRecord:
        branch = DomainId.parse(domain)
        current = self.current(branch)
        # A root's own PLOT may be updated, too: its branches stay on the version that they were built on.
        return self._submit(branch, "update", corpus, alpha, pretrain, options, PlotMeta.of(current))

    def grow(self, domain: str, min_count: int) -> JobRecord:
        """Extend the domain by the recorded misses. Raises Conflict if there are none."""
        branch = DomainId.parse(domain)
        self.current(branch)
        if isinstance(min_count, bool) or min_count < 1:
            raise InvalidInput(f"min_count = {min_count} is impossible: give 1 or more", field="min_count")
        name, misses = str(branch), self._parts.misses
        misses.flush()
        epoch, sketch = misses.files.epoch(name), misses.files.all(name)
        if epoch is None:
            raise Conflict(
                f"misses of {name} are not recorded: switch record_misses on, and grow it after some use"
            )
        if sketch is None or not len(sketch.top(1, min_count)[0]):
            seen = 0 if sketch is None else sketch.seen
            raise Conflict(
                f"no n-gram was missed {min_count} times or more in {name} ({seen} misses in all): "
                "wait for more texts, or lower min_count"
            )
        spec = BuildPlotSpec(domain=name, mode="grow", min_count=min_count, epoch=epoch)
        return self._parts.runner.submit("build_plot", spec.stored(), inputs={SKETCH: sketch_bytes(sketch)})

    def erase(
        self,
        domain: str,
        text: Path | bytes | None,
        keep: Path | bytes | None,
        phrases: Sequence[str],
        encoding: str | None,
        dry_run: bool,
    ) -> JobRecord:
        """Erase a text and phrases from all versions of a domain."""
        name = self.current(DomainId.parse(domain)).ref
        if text is None and not phrases:
            raise InvalidInput("there is nothing to erase: give a text, or phrases", field="text")
        if not all(phrase.split() for phrase in phrases):
            raise InvalidInput("a phrase is blank: give words, or leave it out", field="phrases")
        if text is None and keep is not None:
            raise InvalidInput("keep is of no use without a text: leave it out, or give a text", field="keep")
        inputs = {part: given for part, given in ((TEXT, text), (KEEP, keep)) if given is not None}
        for part, given in inputs.items():
            check_text(given, part, encoding)
        self._parts.misses.flush()
        inputs[PHRASES] = json.dumps(list(phrases)).encode()
        spec = EraseSpec(domain=name, dry_run=dry_run, encoding=encoding)
        return self._parts.runner.submit("erase", spec.stored(), inputs=inputs)

    def erased(self, job: JobRecord) -> None:
        """Let the engine read again what an ended job has erased from.

        A job that failed or was cancelled may have done so, too, and does not say which versions it changed.
        """
        if job.kind == "erase":
            with plot_errors():
                every = [meta.id for meta in self._parts.plots.metas()]
            changed = every if job.result is None else job.result["versions"]
            self._parts.tell_deleted(DeletedParts(plots=frozenset(changed)))
            self._parts.misses.refresh()

    def follow_erasures(self, reads: Fetching | None) -> set[str]:
        """Erase from a replica's PLOTs what the primary erased, and let the engine read again."""
        if reads is None:
            return set()
        needed = {
            version.plot_version for model in self._parts.registry.models() for version in model.versions
        }
        with none_brings(self._parts.layout) as free:
            if not free:
                return set()  # the next call follows in some seconds
            needed |= pinned_here(self._parts.layout.jobs)
            changed = follow_erasures(self._parts.plots, reads, needed)
        if changed:
            self._parts.tell_deleted(DeletedParts(plots=frozenset(changed)))
        return changed

    def set(self, domain: str, record_misses: bool | None) -> DomainInfo:
        branch = DomainId.parse(domain)
        self.current(branch)
        if record_misses is not None:
            self._record(str(branch), record_misses)
        return self.one(domain)

    def all(self) -> list[DomainInfo]:
        with plot_errors():
            heads = self._parts.plots.heads()
        children: defaultdict[str, list[str]] = defaultdict(list)
        for ref in sorted(heads):
            children[ref.rpartition("/")[0]].append(ref)
        recorded = self._parts.misses.files.epochs()
        found = []
        for ref in sorted(heads):
            with suppress(NotFound):  # it was deleted this moment
                found.append(self._view(ref, heads[ref], children[ref], record_misses=ref in recorded))
        return found

    def one(self, domain: str) -> DomainInfo:
        current = self.current(DomainId.parse(domain))
        with plot_errors():
            below = self._parts.plots.heads(f"{current.ref}/")
        children = sorted(ref for ref in below if ref.rpartition("/")[0] == current.ref)
        epoch = self._parts.misses.files.epoch(current.ref)
        return self._view(current.ref, current.id, children, record_misses=epoch is not None)

    def rollback(self, domain: str, version: str) -> DomainInfo:
        """Make `version` current: new fine-tunings use it, and existing models keep theirs."""
        branch = DomainId.parse(domain)
        self.current(branch)
        with plot_errors():
            self._parts.plots.rollback(str(branch), version)
        self._parts.share(str(branch))
        return self.one(domain)

    def delete(self, domain: str) -> None:
        branch = DomainId.parse(domain)
        self.current(branch)
        if branch.parent is None:
            raise InvalidInput(f"{domain!r} is a root: delete the root", field="domain")
        self.drop(branch)

    def drop(self, branch: DomainId) -> None:
        """Remove a ref that nothing depends on. Raises Conflict, which names its dependants."""

        def act(models: list[str], jobs: list[str]) -> None:
            # The registry excludes all other processes meanwhile, so no model or job can become a dependant.
            with plot_errors():
                below = sorted(self._parts.plots.heads(f"{branch}/"))
            for what, names in (("domain", below), ("model", models), ("job", jobs)):
                if names:
                    raise Conflict(_depends(str(branch), what, names), dependants=names)
            withdraw(self._parts.bucket, str(branch))
            with plot_errors(), suppress(plot_store.NotFound):  # there may be no such ref
                versions.extend(self._parts.plots.history(str(branch)))
                self._parts.plots.delete(str(branch))
            self._record(str(branch), False)

        versions: list[VersionInfo] = []
        self._parts.registry.while_unused(str(branch), act)
        self._parts.tell_deleted(DeletedParts(plots=frozenset(version.id for version in versions)))
        if samples := samples_of(versions):
            with plot_errors():
                others = samples_of(m for m in self._parts.plots.metas() if m.ref != str(branch))
            self._parts.samples.remove(samples - others)

    def current(self, branch: DomainId) -> VersionInfo:
        """The version that the next fine-tuning uses. Raises NotFound."""
        found = current_version(self._parts.plots, str(branch))
        if found is None:
            raise _unknown(str(branch))
        return found

    def _record(self, domain: str, on: bool) -> None:
        files = self._parts.misses.files
        files.switch_on(domain) if on else files.switch_off(domain)
        self._parts.misses.refresh()

    def _submit(
        self,
        branch: DomainId,
        mode: Literal["create", "update"],
        corpus: Path | bytes,
        alpha: float | None,
        pretrain: bool,
        options: Mapping[str, Any] | None,
        before: PlotMeta | None,
    ) -> JobRecord:
        checked = checked_options(BuildPlotOptions, options)
        if not self._parts.registry.root(branch.root).split:
            idle = "pretrain" if pretrain else "options.budget_bytes" if checked.budget_bytes else None
            if idle is not None:
                raise InvalidInput(
                    f"{idle} is of no use below root {branch.root}, which looks up no n-grams: leave it out",
                    field=idle,
                )
        alpha, budget = _extent(alpha, checked.budget_bytes, before)
        checked = checked.model_copy(update={"budget_bytes": budget})
        checked_corpus(corpus, encoding=checked.encoding)
        spec = BuildPlotSpec(domain=str(branch), mode=mode, alpha=alpha, pretrain=pretrain, options=checked)
        return self._parts.runner.submit("build_plot", spec.stored(), inputs={"corpus": corpus})

    def _models_by_domain(self) -> Counter[str]:
        """The number of models of each domain. It is cached until the registry changes, since
        counting reads all models and anybody with a key may ask."""
        # Taken before reading, so that a change meanwhile causes another count.
        at = self._parts.registry.generation()
        if self._counted is None or self._counted[0] != at:
            models = self._parts.registry.models()
            self._counted = at, Counter(d for m in models for d in {v.domain for v in m.versions})
        return self._counted[1]

    def _view(self, ref: str, head: str, children: list[str], *, record_misses: bool) -> DomainInfo:
        """head: id of the current version. Raises NotFound."""
        branch = DomainId.parse(ref)
        with plot_errors():
            history = self._parts.plots.history(ref)
        # It may have moved meanwhile, and a collection may have taken the version that was current.
        current = next((version for version in history if version.id == head), history[0])
        sizes = {s.name: s.bytes for v in history for s in v.segments}
        return DomainInfo(
            domain=ref,
            root=branch.root,
            parent=None if branch.parent is None else str(branch.parent),
            current=current.id,
            versions=tuple(_version_view(v, v.id == current.id) for v in history),
            children=tuple(children),
            entries=_entries(current),
            bytes=sum(sizes.values()),
            alpha=PlotMeta.of(current).alpha,
            models=self._models_by_domain()[ref],
            record_misses=record_misses,
        )


def _extent(
    alpha: float | None, budget: int | None, before: PlotMeta | None
) -> tuple[float | None, int | None]:
    """(alpha, budget_bytes), one of them None: the given one, else the previous version's, else alpha 50.

    Raises InvalidInput if both are given.
    """
    if alpha is not None and budget is not None:
        raise InvalidInput(
            "alpha and options.budget_bytes both decide how much is stored: give one of them",
            field="options.budget_bytes",
        )
    if alpha is None and budget is None and before is not None:
        budget = before.budget_bytes
    if budget is not None:
        return None, budget
    kept = before.alpha if alpha is None and before is not None else alpha
    return checked_alpha(DEFAULT_ALPHA if kept is None else kept), None


def _version_view(version: VersionInfo, current: bool) -> DomainVersionInfo:
    meta = PlotMeta.of(version)
    return DomainVersionInfo(
        version=version.id,
        created=version.created,
        entries=_entries(version),
        bytes=version.bytes,
        alpha=meta.alpha,
        budget_bytes=meta.budget_bytes,
        report=dict(meta.report),
        current=current,
    )


def _entries(version: VersionInfo) -> dict[str, int]:
    return {str(order): count for order, count in version.entries.items()}


def _unknown(domain: str) -> NotFound:
    return NotFound(f"there is no domain {domain!r}: see the list of domains, or create it", field="domain")


def _depends(domain: str, what: str, names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return f"{domain} is in use by {what} {shown}: {'cancel' if what == 'job' else 'delete'} that first"
