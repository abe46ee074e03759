"""Onboarding of many tenants, over HTTP or on a data folder: runs a plan in parallel and records its end."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hmi.cli.framework.client import RemoteError
from hmi.cli.framework.endings import figures
from hmi.cli.framework.session import Calls
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.core import ENDED, check_name
from hmi.errors import HmiError, InvalidInput
from hmi.model.checked import file_sha256
from hmi.training.tasks.headline import headline_name

FIRST_POLL_S, LAST_POLL_S = 0.1, 2.0
"""Intervals at which a job is looked at: the first, and the longest, up to which they grow."""


class Interrupted(HmiError):
    """Raised after Ctrl-C, when the end of a job is unknown."""


@dataclass(frozen=True)
class ModelEntry:
    """A model to create, and its tenant."""

    tenant: str
    model: str
    domain: str
    task: str
    data: Path | None = None
    dev: Path | None = None
    unlabelled: Path | None = None
    rows: bytes | None = None
    """The rows themselves, as JSONL, instead of `data`."""
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """The tenant's own settings: `weight`, `limits`."""

    @property
    def id(self) -> str:
        return f"{self.tenant}.{self.model}"

    @contextmanager
    def files(self) -> Iterator[dict[str, Path]]:
        """The files to send, by part name, for the block."""
        given = {"data": self.data, "dev": self.dev, "unlabelled": self.unlabelled}
        found = {name: file for name, file in given.items() if file is not None}
        if self.rows is None:
            yield found
            return
        with tempfile.TemporaryDirectory(prefix="hmi-onboard-") as folder:
            data = Path(folder) / "rows.jsonl"
            data.write_bytes(self.rows)
            yield {**found, "data": data}


@dataclass(frozen=True)
class Onboarding:
    """Creates a plan's tenants, keys and models. `calls` are an administrator's."""

    calls: Calls
    state: State
    parallel: int = 4
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, plan: Iterable[ModelEntry], on_outcome: Callable[[Outcome], None]) -> list[Outcome]:
        """Run the entries that have not succeeded yet. Returns an outcome for each, in the plan's order.

        Raises only for Ctrl-C: an error of one entry is its outcome.
        """
        entries = list(plan)
        locks = {entry.tenant: threading.Lock() for entry in entries}
        found: dict[str, Outcome] = {}
        pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="onboard")
        try:
            futures = [pool.submit(self.one, entry, locks[entry.tenant]) for entry in entries]
            for future in as_completed(futures):
                outcome = future.result()
                found[outcome.id] = outcome
                on_outcome(outcome)
        finally:
            self.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return [found[entry.id] for entry in entries]

    def one(self, entry: ModelEntry, lock: threading.Lock) -> Outcome:
        """Onboard one entry unless it has succeeded before. `lock` is its tenant's."""
        kept = self.state.of(entry.id)
        if kept is not None and kept.done:
            return replace(kept, unchanged=True)
        began = time.monotonic()
        try:
            with lock:
                self._tenant(entry)
            outcome = self._model(entry, attempt="" if kept is None else kept.job)
        except Interrupted:
            raise
        except HmiError as error:
            outcome = Outcome(entry.id, "failed", error.message)
        except OSError as error:
            outcome = Outcome(entry.id, "failed", f"{error.filename}: {error.strerror}")
        outcome = replace(outcome, seconds=round(time.monotonic() - began, 1))
        self.state.keep(outcome)
        return outcome

    def _tenant(self, entry: ModelEntry) -> None:
        if self.state.key_of(entry.tenant) is not None:
            return
        body = {"tenant": entry.tenant, **entry.settings}
        try:
            made = self.calls.request("POST", "/manage/tenants", body, once=_hash("tenant", body))
        except HmiError as error:
            if kind_of(error) != "conflict":
                raise
            made = self.calls.request("POST", f"/manage/tenants/{entry.tenant}/keys", {})
        self.state.keep_key(entry.tenant, made["key"])

    def _model(self, entry: ModelEntry, attempt: str) -> Outcome:
        if self._exists(entry.id):
            return Outcome(entry.id, "succeeded", "it exists already", unchanged=True)
        spec = {"model": entry.id, "domain": entry.domain, "task": entry.task, "options": entry.options}
        with entry.files() as files:
            once = _hash(spec, attempt, *((part, file_sha256(file)) for part, file in files.items()))
            try:
                job = self.calls.request("POST", "/manage/models", spec, files or None, once=once)["job"]
            except HmiError as error:
                job = error.details.get("job")  # of a run that was killed, which makes this model
                if job is None:
                    raise
        return follow(self.calls.request, entry.id, job, self.stop)

    def _exists(self, model: str) -> bool:
        try:
            self.calls.request("GET", f"/manage/models/{model}")
        except HmiError as error:
            if kind_of(error) == "not_found":
                return False
            raise
        return True


def kind_of(error: HmiError) -> str:
    """The kind of an error, of a server or of a data folder."""
    return error.remote_kind if isinstance(error, RemoteError) else error.kind


def follow(request: Callable[..., Any], name: str, job: str, stop: threading.Event) -> Outcome:
    """Wait until a job ends and return its outcome.

    Raises Interrupted once `stop` is set, and what `request` raises.
    """
    pause = FIRST_POLL_S
    while True:
        view = request("GET", f"/manage/jobs/{job}")
        if view["state"] == "succeeded":
            return _succeeded(name, view)
        if view["state"] in ENDED:
            return Outcome(name, "failed", (view["error"] or {}).get("message") or view["state"], job)
        if stop.wait(pause):
            raise Interrupted(f"job {job} continues on its own")
        pause = min(1.5 * pause, LAST_POLL_S)


def _succeeded(name: str, view: Mapping[str, Any]) -> Outcome:
    metrics = (view["result"] or {}).get("metrics") or {}
    metric = headline_name(metrics)
    return Outcome(
        name,
        "succeeded",
        "",
        view["job"],
        figures=figures(view),
        metric=metric or "",
        score=None if metric is None else float(metrics[metric]),
        rows=metrics.get("rows"),
    )


def _hash(*what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def check_plan(entries: list[ModelEntry]) -> list[ModelEntry]:
    """Return the entries. Raises InvalidInput, naming the first entry that is invalid."""
    seen: set[str] = set()
    settings: dict[str, dict[str, Any]] = {}
    for entry in entries:
        check_name(entry.tenant, "tenant")
        check_name(entry.model, "model")
        if entry.id in seen:
            raise InvalidInput(f"{entry.id} is in the plan twice: give each model a name of its own")
        seen.add(entry.id)
        if settings.setdefault(entry.tenant, entry.settings) != entry.settings:
            raise InvalidInput(f"{entry.id}: the rows of tenant {entry.tenant} differ in weight or limits")
        for file in (entry.data, entry.dev, entry.unlabelled):
            if file is not None and not file.is_file():
                raise InvalidInput(f"{entry.id}: there is no file {file}")
    if not entries:
        raise InvalidInput("the plan is empty: see --help for its two forms")
    return entries
