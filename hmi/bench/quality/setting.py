"""The data folder of the quality runs: a root and a domain for each corpus, made by the jobs that a server runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hmi.api.local import LocalCalls
from hmi.bench.quality.models import Models
from hmi.bench.quality.tasks import QualityTask
from hmi.config import Settings
from hmi.core import Progress
from hmi.errors import HmiError, InvalidInput
from hmi.jobs.corpus import read_documents
from hmi.model.root import load_root
from hmi.model.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.stores.plots import open_plots
from plot_store import Reader

ROOT = "quality"
CORPUS_OF = {"biomedical": "biomedical", "computer science": "cs", "science": "cs", "economics": "economics"}
"""The corpus of a task's domain; of every other domain the general one."""
GENERAL = "general"

Say = Callable[[str], None]
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Setting:
    """Where the knowledge comes from. documents: at most so many of a corpus, spread over it. root: one that is there
    already; None imports the default source."""

    data: Path
    corpora: Path
    alpha: float = 50.0
    documents: int = 20_000
    root: str | None = None

    def corpus(self, task: QualityTask) -> str:
        return CORPUS_OF.get(task.domain, GENERAL)

    def branch(self, task: QualityTask) -> str:
        """The domain's name; it says what the PLOT was built of, so that another setting gets another one."""
        return f"{self.root or ROOT}/{self.corpus(task)}-a{self.alpha:g}-d{self.documents}".replace(".", "-")


def prepare(setting: Setting, tasks: list[QualityTask], say: Say, show: Show) -> Path:
    """Import the root and build the domains that are not there yet; the root's folder. Raises HmiError."""
    calls = LocalCalls(Settings.from_env(None, data=setting.data))
    try:
        folder = setting.data / "roots" / _ensured_root(calls, setting, say, show)
        have = {domain["domain"] for domain in calls.request("GET", "/manage/domains")["domains"]}
        for corpus, branch in sorted({(setting.corpus(task), setting.branch(task)) for task in tasks}):
            if branch not in have:
                say(f"building {branch}")
                _build(calls, setting, corpus, branch, show)
        return folder
    finally:
        calls.close()


@contextmanager
def opened(setting: Setting, folder: Path) -> Iterator[Models]:
    """The root in this folder, its source, and the PLOTs that `prepare` made."""
    root = load_root(folder)
    source = load_encoder(find_source(root.info.source["name"]).folder).eval().requires_grad_(False)
    with open_plots(setting.data / "plots") as store:

        def plot_of(task: QualityTask) -> Reader:
            return store.reader(setting.branch(task))

        yield Models(source, root, plot_of)


def _ensured_root(calls: LocalCalls, setting: Setting, say: Say, show: Show) -> str:
    """`name/version` of the root."""

    def have() -> dict[str, str]:
        return {root["root"]: root["version"] for root in calls.request("GET", "/manage/roots")["roots"]}

    wanted = setting.root or ROOT
    if setting.root is None and ROOT not in have():
        say("importing the default root")
        _run(calls, calls.request("POST", "/manage/roots", {"root": ROOT, "source": DEFAULT_PACKAGE})["job"], show)
    if wanted not in have():
        raise InvalidInput(f"no root {wanted!r} in this folder: import it first (hmi root import)", field="root")
    return f"{wanted}/{have()[wanted]}"


def _build(calls: LocalCalls, setting: Setting, corpus: str, branch: str, show: Show) -> None:
    path = setting.corpora / f"{corpus}.txt.gz"
    if not path.is_file():
        raise InvalidInput(f"{path} is not there: name the folder of the corpora", field="corpora")
    documents = list(read_documents(path))
    chosen = documents[:: max(1, len(documents) // setting.documents)][: setting.documents]
    with tempfile.TemporaryDirectory(dir=setting.data) as folder:
        text = Path(folder) / "corpus.txt"
        text.write_text("\n".join(chosen), encoding="utf-8")
        body = {"domain": branch, "alpha": setting.alpha}
        _run(calls, calls.request("POST", "/manage/domains", body, {"corpus": text})["job"], show)


def _run(calls: LocalCalls, job: str, show: Show) -> None:
    calls.run(job, show)
    view = calls.request("GET", f"/manage/jobs/{job}")
    if view["state"] != "succeeded":
        raise HmiError(f"job {job} {view['state']}: {(view['error'] or {}).get('message', 'see its log')}")
