"""Onboarding of many tenants over HTTP: runs a plan in parallel and records its outcomes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hmi.cli.client import Client, RemoteError
from hmi.cli.endings import figures
from hmi.core import ENDED, check_name
from hmi.errors import HmiError, InvalidInput
from hmi.model.checked import file_sha256

POLL_S = 0.5


class Interrupted(HmiError):
    """Raised after Ctrl-C, when the end of a job is unknown."""


@dataclass(frozen=True)
class Entry:
    """A model to create."""

    tenant: str
    model: str
    domain: str
    task: str
    data: Path
    dev: Path | None = None
    unlabelled: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.tenant}.{self.model}"


@dataclass(frozen=True)
class Outcome:
    """The end of one entry."""

    id: str
    state: str
    """succeeded | failed"""
    reason: str = ""
    job: str = ""
    seconds: float = 0.0
    figures: dict[str, str] = field(default_factory=dict)
    """Figures of the job's result, by table heading."""


class State:
    """The record of a batch: a JSON file of outcomes, and one of mode 0600 with the tenants' keys.

    Thread-safe. Each change replaces the file.
    """

    def __init__(self, path: Path, keys: Path | None = None) -> None:
        self._path, self._keys_path = path, keys
        self._lock = threading.Lock()
        self._done: dict[str, dict[str, Any]] = _read(path)
        self._keys: dict[str, str] = _read(keys) if keys is not None else {}

    def key_of(self, tenant: str) -> str | None:
        with self._lock:
            return self._keys.get(tenant)

    def keep_key(self, tenant: str, key: str) -> None:
        assert self._keys_path is not None
        with self._lock:
            self._keys[tenant] = key
            _write(self._keys_path, self._keys, 0o600)

    def of(self, name: str) -> Outcome | None:
        with self._lock:
            kept = self._done.get(name)
        return Outcome(**kept) if kept else None

    def keep(self, outcome: Outcome) -> None:
        with self._lock:
            self._done[outcome.id] = asdict(outcome)
            _write(self._path, self._done, 0o644)


@dataclass(frozen=True)
class Onboarding:
    """Creates a plan's tenants, keys and models on a server.

    `client` has an administrator's key, or none if the server needs none.
    """

    client: Client
    state: State
    parallel: int = 4
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, plan: Iterable[Entry], on_outcome: Callable[[Outcome], None]) -> list[Outcome]:
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

    def one(self, entry: Entry, lock: threading.Lock) -> Outcome:
        """Onboard one entry unless it has succeeded before. `lock` is its tenant's."""
        kept = self.state.of(entry.id)
        if kept is not None and kept.state == "succeeded":
            return kept
        began = time.monotonic()
        try:
            with lock:
                self._tenant(entry.tenant)
            outcome = self._model(entry, attempt="" if kept is None else kept.job)
        except Interrupted:
            raise
        except HmiError as error:
            outcome = Outcome(entry.id, "failed", error.message)
        except OSError as error:
            outcome = Outcome(entry.id, "failed", f"{error.filename}: {error.strerror}")
        outcome = Outcome(**{**asdict(outcome), "seconds": round(time.monotonic() - began, 1)})
        self.state.keep(outcome)
        return outcome

    def _tenant(self, tenant: str) -> None:
        if self.state.key_of(tenant) is not None:
            return
        try:
            made = self.client.request(
                "POST", "/manage/tenants", {"tenant": tenant}, once=f"onboard-{tenant}"
            )
        except RemoteError as error:
            if error.remote_kind != "conflict":
                raise
            made = self.client.request("POST", f"/manage/tenants/{tenant}/keys", {})
        self.state.keep_key(tenant, made["key"])

    def _model(self, entry: Entry, attempt: str) -> Outcome:
        if self._exists(entry.id):
            return Outcome(entry.id, "succeeded", "it exists already")
        spec = {"model": entry.id, "domain": entry.domain, "task": entry.task, "options": entry.options}
        given = {"data": entry.data, "dev": entry.dev, "unlabelled": entry.unlabelled}
        files = {name: file for name, file in given.items() if file is not None}
        once = hashlib.sha256(
            json.dumps([spec, attempt, *((part, file_sha256(file)) for part, file in files.items())]).encode()
        ).hexdigest()
        job = self.client.request("POST", "/manage/models", spec, files, once=once)["job"]
        return follow(self.client.request, entry.id, job, self.stop)

    def _exists(self, model: str) -> bool:
        try:
            self.client.request("GET", f"/manage/models/{model}")
        except RemoteError as error:
            if error.status == 404:
                return False
            raise
        return True


def follow(request: Callable[..., Any], name: str, job: str, stop: threading.Event) -> Outcome:
    """Wait until a job ends and return its outcome.

    Raises Interrupted once `stop` is set, and what `request` raises.
    """
    while True:
        view = request("GET", f"/manage/jobs/{job}")
        if view["state"] == "succeeded":
            return Outcome(name, "succeeded", "", job, figures=figures(view))
        if view["state"] in ENDED:
            return Outcome(name, "failed", (view["error"] or {}).get("message") or view["state"], job)
        if stop.wait(POLL_S):
            raise Interrupted(f"job {job} continues on its own")


def check_plan(entries: list[Entry]) -> list[Entry]:
    """Return the entries. Raises InvalidInput, naming the first entry that is invalid."""
    seen: set[str] = set()
    for entry in entries:
        check_name(entry.tenant, "tenant")
        check_name(entry.model, "model")
        if entry.id in seen:
            raise InvalidInput(f"{entry.id} is in the plan twice: give each model a name of its own")
        seen.add(entry.id)
        for file in (entry.data, entry.dev, entry.unlabelled):
            if file is not None and not file.is_file():
                raise InvalidInput(f"{entry.id}: there is no file {file}")
    if not entries:
        raise InvalidInput("the plan is empty: see --help for its two forms")
    return entries


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidInput(f"{path} was not written by this script ({error}): move it away") from error


def _write(path: Path, value: dict[str, Any], mode: int) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
