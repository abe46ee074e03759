"""A data folder in which `bench plot` runs the real jobs and times their phases."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cases.plot.split import Rates
from hmi.api.local import LocalCalls
from hmi.config import Settings
from hmi.core import Progress
from hmi.errors import HmiError, InvalidInput
from hmi.model.source import DEFAULT_PACKAGE
from hmi.model.tokenizer import Tokenizer
from hmi.stores.layout import Layout
from hmi.stores.plots import open_plots
from plot_store import Store

ROOT = "bench"

Report = Callable[[str], None]


@dataclass
class Clock:
    """The time at which each phase of a job was first seen."""

    begun: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def saw(self, progress: Progress) -> None:
        if progress.phase:
            self.phases.setdefault(progress.phase, time.monotonic())

    def spent(self) -> dict[str, float]:
        """Return seconds by phase, until the next phase or until now.

        The time before the first phase is `starting`.
        """
        names, starts = ["starting", *self.phases], [self.begun, *self.phases.values(), time.monotonic()]
        return {name: starts[i + 1] - starts[i] for i, name in enumerate(names)}


@dataclass(frozen=True)
class Built:
    """A finished build of a PLOT. `spent` is seconds by phase."""

    domain: str
    result: dict[str, Any]
    bytes: int
    spent: dict[str, float]

    @property
    def rows(self) -> int:
        return int(self.result["stored_trigrams"] + self.result["stored_bigrams"])

    @property
    def rates(self) -> Rates:
        counting = self.spent.get("counting n-grams", 0.0) + self.spent.get("merging counts", 0.0)
        computing = self.spent.get("representations", 0.0)
        rest = sum(self.spent.values()) - counting - computing
        return Rates(self.result["tokens"] / max(counting, 0.2), self.rows / max(computing, 0.2), rest)


class Lab:
    """A data folder in which jobs run as in a server: each in its own process."""

    def __init__(
        self, settings: Settings, root: str | None, report: Report, show: Callable[[Progress], None]
    ) -> None:
        self._settings, self._root, self._report, self._show = settings, root, report, show

    def __enter__(self) -> Lab:
        self._calls = LocalCalls(self._settings)
        self._made: list[str] = []
        try:
            self._root = self._ensure_root()
        except BaseException:
            self._calls.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for domain in list(self._made):
                self.remove(domain)
        finally:
            self._calls.close()

    def build(self, documents: list[str], alpha: float) -> Built:
        """Build a new branch of the root from these documents. Raises HmiError."""
        domain = f"{self._root}/{ROOT}-{alpha:g}-{secrets.token_hex(3)}".replace(".", "-")
        with tempfile.TemporaryDirectory(dir=self._settings.data) as folder:
            corpus = Path(folder) / "corpus.txt"
            corpus.write_text("\n".join(documents), encoding="utf-8")
            body = {"domain": domain, "alpha": alpha}
            job = self._calls.request("POST", "/manage/domains", body, {"corpus": corpus})["job"]
        self._made.append(domain)
        clock = Clock()
        view = self._run(job, clock)
        spent = clock.spent()
        with self.store() as store:
            return Built(domain, view["result"], store.version(domain).bytes, spent)

    def remove(self, domain: str) -> None:
        self._made.remove(domain)
        self._calls.request("DELETE", f"/manage/domains/{domain.replace('/', '.')}")

    @contextmanager
    def store(self) -> Iterator[Store]:
        with open_plots(Layout(self._settings.data).plots) as store:
            yield store

    def tokenizer(self) -> Tokenizer:
        """Return the root's tokenizer."""
        version = self._roots()[str(self._root)]["version"]
        return Tokenizer(Layout(self._settings.data).root(str(self._root), version) / "tokenizer.json")

    def _roots(self) -> dict[str, dict[str, Any]]:
        return {root["root"]: root for root in self._calls.request("GET", "/manage/roots")["roots"]}

    def _ensure_root(self) -> str:
        """Return the requested root, the one of an earlier run, or the default source, imported now."""
        have, wanted = self._roots(), self._root or ROOT
        if wanted in have:
            return wanted
        if have or self._root is not None:
            raise InvalidInput(
                f"no root {wanted!r} in this folder: use --root with one of: {', '.join(have) or '(none)'}",
                field="root",
            )
        self._report("importing the default root")
        body = {"root": ROOT, "source": DEFAULT_PACKAGE}
        self._run(self._calls.request("POST", "/manage/roots", body)["job"], Clock())
        return ROOT

    def _run(self, job: str, clock: Clock) -> dict[str, Any]:
        def saw(progress: Progress) -> None:
            clock.saw(progress)
            self._show(progress)

        self._calls.run(job, saw)
        view: dict[str, Any] = self._calls.request("GET", f"/manage/jobs/{job}")
        if view["state"] != "succeeded":
            raise HmiError(
                f"job {job} {view['state']}: {(view['error'] or {}).get('message', 'see its log')}"
            )
        return view
