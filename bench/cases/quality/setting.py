"""The data folder of the quality runs: a root and a domain for each corpus, built by the server's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.quality.models import Encoders
from bench.cases.quality.tasks import QualityTask
from bench.harness.home import ended
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import Progress
from hmi.errors import InvalidInput
from hmi.model.sources.root import load_root
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.stores.plot.plots import open_plots
from plot_store import Reader

ROOT = "quality"
FULL = "quality-full"
"""The root without lower layers, by the same source."""
GENERAL = "general"
CORPUS_OF = {"biomedical": "biomedical", "computer science": "cs", "science": "cs", "economics": "economics"}
"""The corpus of a task's domain. Domains that are not listed have the general corpus."""

Say = Callable[[str], None]
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Amount:
    """The part of a corpus that a PLOT holds: `alpha` percent of its occurrences, or what fits in
    `megabytes`."""

    alpha: float | None = None
    megabytes: int | None = None
    pretrain: int = 0
    """Steps of further pretraining of the lower layers on the corpus."""

    def __str__(self) -> str:
        name = f"a{self.alpha:g}".replace(".", "-") if self.megabytes is None else f"b{self.megabytes}"
        return f"{name}-p{self.pretrain}" if self.pretrain else name

    def body(self) -> dict[str, Any]:
        """Return the fields of a request that builds a domain."""
        options = {"pretrain_steps": self.pretrain} if self.pretrain else {}
        if self.megabytes is None:
            return {"alpha": self.alpha, "pretrain": bool(self.pretrain), "options": options}
        return {
            "pretrain": bool(self.pretrain),
            "options": {**options, "budget_bytes": self.megabytes * 1_000_000},
        }


@dataclass(frozen=True)
class PlotSetting:
    """The PLOTs that tasks use: a branch of general text, and on it a branch for each domain.

    Without `domain` every task uses the general branch. `root` is an existing root; None imports the default
    source.
    """

    data: Path
    corpora: Path
    general: Amount = Amount(megabytes=1_000)
    domain: Amount | None = Amount(megabytes=500)
    root: str | None = None

    @property
    def key(self) -> str:
        """Return the part of the runs' keys that identifies the PLOTs."""
        return f"{self.general}" if self.domain is None else f"{self.general} {self.domain}"

    def branches(self, task: QualityTask) -> list[tuple[str, str, Amount]]:
        """Return (corpus, branch, amount) of the general branch and, if there is one, of the task's own.

        A branch's name tells what it was built from, so that another setting builds another branch.
        """
        corpus = CORPUS_OF.get(task.domain, GENERAL)
        general = f"{self.root or ROOT}/{GENERAL}-{self.general}"
        found = [(GENERAL, general, self.general)]
        if corpus == GENERAL or self.domain is None:
            return found
        return [*found, (corpus, f"{general}/{corpus}-{self.domain}", self.domain)]

    def branch(self, task: QualityTask) -> str:
        return self.branches(task)[-1][1]


def prepare(
    setting: PlotSetting, tasks: list[QualityTask], say: Say, show: Show, *, full: bool = False
) -> Path:
    """Import the root and build the domains that are missing. Returns the root's folder. Raises HmiError.

    full: also import a root of the same source that computes all layers.
    """
    wanted = setting.root or ROOT
    with closing(LocalCalls(Settings.from_env(None, data=setting.data))) as calls:
        if setting.root is None and ROOT not in _roots(calls):
            say("importing the default root")
            ended(calls, "/manage/roots", {"root": ROOT, "source": DEFAULT_PACKAGE}, show=show)
        roots = _roots(calls)
        if wanted not in roots:
            raise InvalidInput(
                f"no root {wanted!r} in this folder: import it first (hmi root import)", field="root"
            )
        folder = setting.data / "roots" / wanted / roots[wanted]
        if full and FULL not in roots:
            say("importing a root that computes all layers")
            source = load_root(folder).info.source["name"]
            ended(calls, "/manage/roots", {"root": FULL, "source": source, "split": 0}, show=show)
        have = {domain["domain"] for domain in calls.request("GET", "/manage/domains")["domains"]}
        for corpus, branch, amount in dict.fromkeys(b for task in tasks for b in setting.branches(task)):
            file = setting.corpora / f"{corpus}.txt.gz"
            if branch in have:
                continue
            if not file.is_file():
                raise InvalidInput(f"{file} is not there: name the folder of the corpora", field="corpora")
            say(f"building {branch}")
            ended(calls, "/manage/domains", {"domain": branch, **amount.body()}, {"corpus": file}, show)
        return folder


@contextmanager
def opened(setting: PlotSetting, folder: Path) -> Iterator[Encoders]:
    """Open the root in this folder, its source, and the PLOTs that `prepare` built."""
    root = load_root(folder)
    source = load_encoder(find_source(root.info.source["name"]).folder).eval().requires_grad_(False)
    with open_plots(setting.data / "plots") as store:

        def plot_of(task: QualityTask) -> Reader:
            return store.reader(setting.branch(task))

        alike = sorted((setting.data / "roots" / FULL).glob("*/root.json"))
        full = [Encoders(source, load_root(file.parent), lambda _: store.reader(FULL)) for file in alike]
        yield Encoders(source, root, plot_of, full[-1] if full else None)


def _roots(calls: LocalCalls) -> dict[str, str]:
    """The versions of the roots, by name."""
    return {root["root"]: root["version"] for root in calls.request("GET", "/manage/roots")["roots"]}
