"""A corpus that several jobs count, here and at other servers: what the build does, and the job of one part.

The build cuts its corpus into parts and queues a job for each. Servers begin with the first. The build counts
the last that nobody has begun, and so on, until others count what is left. At the end it merges all counts.
The merge has the bytes of one count, so nothing later depends on who counted.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hmi.core import DomainId, JobRecord, JobState, now
from hmi.errors import Damaged, JobCancelled, NotFound, Unavailable
from hmi.jobs.plot.ngrams import count_corpus, count_texts, texts_of
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import JobFolder, PinnedPlots
from hmi.jobs.specs import CountPartSpec
from hmi.model.files import replace_folder, write_bytes
from hmi.model.sources.generative_root import GenerativeRoot, load_for_serving
from hmi.model.sources.root import Root
from hmi.stores.records.claims import LostClaim
from hmi.stores.records.job_table import part_id
from hmi.stores.shared_folder import SharedFolder
from plot_store import CountedNgrams, merge_counts

MOST_PARTS: Final = 64
TEXTS: Final = "texts"
"""The input of a part's job: its texts, each as JSON on a line of its own."""
WAIT_S: Final = 0.2
"""The pause between two looks at parts that others count."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Count one part of a build's corpus."""
    spec, made = CountPartSpec.of(ctx.job), _place(ctx.folder, ctx.job.job) / "counts"
    root = load_for_serving(ctx.roots.folder(spec.root, spec.root_version, lower=False))
    counted = 0

    def progress(done: int) -> None:
        nonlocal counted
        counted = done
        ctx.progress(min(done, spec.texts), spec.texts, phase="counting n-grams")

    def merged(done: int, of: int) -> None:
        ctx.progress(done, of, phase="merging counts")

    made.parent.mkdir(parents=True, exist_ok=True)
    count_texts(root.tokenizer, _read(ctx.input / TEXTS), root.info.n, made, progress, merged)
    if counted != spec.texts:
        raise Damaged(f"the part has {counted:,} texts instead of {spec.texts:,}: the build counts it again")
    shared = _shared(ctx, spec.build, ctx.job.job)
    if shared is not None:
        shared.put(made)
    else:
        replace_folder(made, _place(JobFolder(ctx.layout.jobs, spec.build).path, ctx.job.job) / "counts")
    return {"texts": counted}


def count_for_build(
    ctx: JobContext, domain: DomainId, root: Root | GenerativeRoot, corpus: Path, documents: int
) -> CountedNgrams:
    """Count a build's corpus: in parts if it is large and several jobs can run at once, else here alone.

    Finished counts of an earlier attempt are reused. Raises as `count_corpus`.
    """
    size = _part_bytes(ctx, corpus)
    if size is None:
        return count_corpus(ctx, root.tokenizer, [corpus], documents, root.info.n)
    kept = ctx.folder / "counts"
    found = CountedNgrams.open(kept)
    if found is not None:
        return found
    parts = _Parts(ctx, domain, root)
    try:
        parts.queue(corpus, size, documents)
        parts.count()
        made = merge_counts(
            parts.all(), kept, progress=lambda done, of: ctx.progress(done, of, phase="merging counts")
        )
    except JobCancelled:
        parts.clear()
        raise
    ctx.checkpointed()
    parts.clear()
    return made


def _part_bytes(ctx: JobContext, corpus: Path) -> int | None:
    """The size of parts, all about the same; None: the corpus is small, or no other job can help."""
    settings, size = ctx.settings, corpus.stat().st_size
    here = settings.job_workers if ctx.registry.is_primary() else settings.replica_jobs
    if size <= settings.count_part_bytes or max(here, len(ctx.registry.servers())) < 2:
        return None
    return math.ceil(size / min(MOST_PARTS, math.ceil(size / settings.count_part_bytes)))


class _Parts:
    """The parts of a build's corpus. The build's folder has the texts and the counts of each."""

    def __init__(self, ctx: JobContext, domain: DomainId, root: Root | GenerativeRoot) -> None:
        self._ctx, self._root, self._domain = ctx, root, domain
        self._texts: dict[str, int] = {}  # the parts' jobs in the corpus' order -> number of texts
        self._left: list[str] = []  # those that are not counted yet, as far as is known here

    def queue(self, corpus: Path, size: int, documents: int) -> None:
        """Cut the corpus into parts of about `size` bytes, and queue those that are not counted or queued."""
        lines: list[bytes] = []
        length = 0
        for text in texts_of(corpus):
            lines.append(json.dumps(text, ensure_ascii=False).encode() + b"\n")
            length += len(lines[-1])
            if length >= size:
                self._add(size, lines)
                lines, length = [], 0
                # A long document is several texts, so there may be more than `documents`.
                done = min(sum(self._texts.values()), documents)
                self._ctx.progress(done, documents, phase="cutting the corpus")
            self._ctx.check()
        if lines:
            self._add(size, lines)

    def count(self) -> None:
        """Count the parts that nobody else has begun, and wait for the others."""
        told = ""
        while self._left:
            try:
                self._step()
            except LostClaim:
                raise
            except Unavailable as error:
                if told != error.message:
                    self._ctx.log(f"the parts of the corpus wait: {error.message}")
                told = error.message
                time.sleep(WAIT_S)
            self._tell()

    def all(self) -> list[CountedNgrams]:
        """The counts of all parts, in the corpus' order. Raises Damaged if a file was removed."""
        found = [CountedNgrams.open(self._place(part) / "counts") for part in self._texts]
        if None in found:
            raise Damaged("the counts of a part are missing on disk: submit the job again")
        return [counted for counted in found if counted is not None]

    def clear(self) -> None:
        """Remove what only the counting needed. The parts' records go when the build's ends."""
        ctx = self._ctx
        shutil.rmtree(ctx.folder / "parts", ignore_errors=True)
        for part in self._texts:
            shutil.rmtree(self._job_folder(part).path, ignore_errors=True)
        if ctx.bucket is not None:
            with suppress(Unavailable):  # the hourly collection makes up for it
                for folder in (f"{ctx.job.job}/parts", *self._texts):
                    ctx.bucket.remove(ctx.bucket.names(f"jobs/{folder}"))

    def _add(self, size: int, lines: list[bytes]) -> None:
        ctx, part = self._ctx, part_id(self._ctx.job.job, size, len(self._texts))
        self._texts[part] = len(lines)
        place = self._place(part)
        place.mkdir(parents=True, exist_ok=True)
        write_bytes(place / TEXTS, b"".join(lines))
        try:
            if self._found(part):
                return
            self._left.append(part)
            if ctx.registry.has_job(part):
                return
            folder = self._job_folder(part)
            folder.remove()  # of an attempt that did not get to queue it
            folder.link(place, [TEXTS], PinnedPlots())
            ctx.registry.add_job(self._record(part))
        except LostClaim:
            raise
        except Unavailable as error:
            ctx.log(f"a part of the corpus was not queued, so it is counted here: {error.message}")
            if part not in self._left:
                self._left.append(part)

    def _record(self, part: str) -> JobRecord:
        ctx = self._ctx
        root = ctx.registry.root(self._domain.root)
        spec = CountPartSpec(
            build=ctx.job.job,
            domain=str(self._domain),
            root=root.name,
            root_version=root.version,
            texts=self._texts[part],
        )
        return JobRecord(
            job=part,
            kind="count_part",
            state="queued",
            created=now(),
            tenant=ctx.job.tenant,
            spec={**spec.stored(), "inputs": [TEXTS]},
        )

    def _step(self) -> None:
        """Count one part, or wait a moment; then take what others have counted. Raises Unavailable."""
        # Others begin with the first parts.
        part = next((part for part in reversed(self._left) if self._is_free(part)), None)
        if part is not None:
            self._count(part)
        else:
            time.sleep(WAIT_S)
        for part in [part for part in self._left if self._state(part) == "succeeded"]:
            if self._found(part):
                self._left.remove(part)
            else:
                self._count(part)  # its counts are lost

    def _is_free(self, part: str) -> bool:
        """Return whether the build is to count a part itself. If so, nobody else does.

        That includes a part that failed: if the texts are the cause, the build fails by the same error, and
        if the server was, it goes on.
        """
        state = self._state(part)
        if state in ("running", "succeeded"):
            return False
        return state is None or self._ctx.registry.take_back(part)

    def _state(self, part: str) -> JobState | None:
        with suppress(NotFound):
            return self._ctx.registry.job(part).state
        return None

    def _count(self, part: str) -> None:
        place = self._place(part)
        before = sum(self._texts.values()) - sum(self._texts[left] for left in self._left)

        def progress(done: int) -> None:
            self._tell(before + done)

        count_texts(
            self._root.tokenizer,
            _read(place / TEXTS),
            self._root.info.n,
            place / "counts",
            progress,
            lambda done, of: self._ctx.check(),
        )
        self._left.remove(part)
        shared = _shared(self._ctx, self._ctx.job.job, part)
        if shared is not None:
            try:
                shared.put(place / "counts")
            except Unavailable as error:
                self._ctx.log(f"the counts of a part did not reach the bucket: {error.message}")

    def _found(self, part: str) -> bool:
        """Return whether the counts of a part are there; if they are in the bucket, bring them."""
        counts = self._place(part) / "counts"
        shared = _shared(self._ctx, self._ctx.job.job, part)
        if shared is not None and CountedNgrams.open(counts) is None and (names := shared.listed()):
            counts.mkdir(parents=True, exist_ok=True)
            try:
                shared.fetch(counts, names)
            except Damaged as error:
                self._ctx.log(f"a part of the corpus is counted again: {error.message}")
        return CountedNgrams.open(counts) is not None

    def _tell(self, done: int | None = None) -> None:
        total = sum(self._texts.values())
        counted = total - sum(self._texts[part] for part in self._left) if done is None else done
        self._ctx.progress(min(counted, total), total, phase="counting n-grams")

    def _place(self, part: str) -> Path:
        return _place(self._ctx.folder, part)

    def _job_folder(self, part: str) -> JobFolder:
        return JobFolder(self._ctx.layout.jobs, part, self._ctx.bucket)


def _place(folder: Path, part: str) -> Path:
    """The folder of a part in a job's folder. It lies so deep that no checkpoint has it: a count that was
    interrupted begins again."""
    return folder / "parts" / part


def _shared(ctx: JobContext, build: str, part: str) -> SharedFolder | None:
    """The place of a part's counts in the bucket; None if the data folder is this server's own."""
    if ctx.bucket is None or not ctx.registry.node():
        return None
    return SharedFolder(ctx.bucket, f"jobs/{build}/parts/{part}")


def _read(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        yield from map(json.loads, file)
