"""A data folder in which `bench plot` runs the real jobs and times their phases."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Built:
    """A finished build of a PLOT. `spent` is seconds by phase; those before the first are `starting`."""

    domain: str
    result: dict[str, Any]
    bytes: int
    spent: dict[str, float]


class Lab:
    """A data folder in which jobs run as in a server: each in its own process.

    On leaving, the branches that it built are removed.
    """

    def __init__(
        self,
        settings: Settings,
        root: str | None,
        report: Callable[[str], None],
        show: Callable[[Progress], None],
    ) -> None:
        self._settings, self._wanted, self._report, self._show = settings, root, report, show
        self._made: list[str] = []

    def __enter__(self) -> Lab:
        self._calls = LocalCalls(self._settings)
        try:
            self._root = self._ensure_root()
        except BaseException:
            self._calls.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for domain in self._made:
                self._calls.request("DELETE", f"/manage/domains/{domain.replace('/', '.')}")
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
        result, spent = self._run(job)
        with self.store() as store:
            return Built(domain, result, store.version(domain).bytes, spent)

    @contextmanager
    def store(self) -> Iterator[Store]:
        with open_plots(Layout(self._settings.data).plots) as store:
            yield store

    def tokenizer(self) -> Tokenizer:
        """Return the root's tokenizer."""
        folder = Layout(self._settings.data).root(self._root, self._roots()[self._root]["version"])
        return Tokenizer(folder / "tokenizer.json")

    def _roots(self) -> dict[str, dict[str, Any]]:
        return {root["root"]: root for root in self._calls.request("GET", "/manage/roots")["roots"]}

    def _ensure_root(self) -> str:
        """Return the requested root, the one of an earlier run, or the default source, imported now."""
        have, wanted = self._roots(), self._wanted or ROOT
        if wanted in have:
            return wanted
        if have or self._wanted is not None:
            names = ", ".join(have) or "(none)"
            raise InvalidInput(
                f"no root {wanted!r} in this folder: use --root with one of: {names}", field="root"
            )
        self._report("importing the default root")
        body = {"root": ROOT, "source": DEFAULT_PACKAGE}
        self._run(self._calls.request("POST", "/manage/roots", body)["job"])
        return ROOT

    def _run(self, job: str) -> tuple[dict[str, Any], dict[str, float]]:
        """Run a job. Returns its result and its seconds by phase. Raises HmiError."""
        begun = {"starting": time.monotonic()}

        def saw(progress: Progress) -> None:
            if progress.phase:
                begun.setdefault(progress.phase, time.monotonic())
            self._show(progress)

        self._calls.run(job, saw)
        ends = [*begun.values(), time.monotonic()][1:]
        spent = {phase: end - start for (phase, start), end in zip(begun.items(), ends, strict=True)}
        view: dict[str, Any] = self._calls.request("GET", f"/manage/jobs/{job}")
        if view["state"] != "succeeded":
            why = (view["error"] or {}).get("message", "see its log")
            raise HmiError(f"job {job} {view['state']}: {why}")
        return view["result"], spent
