"""The data folder that `bench serve` measures: a real root, its PLOT over real text, and tenants."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.cases.serve.plan import Plan
from bench.cases.serve.tenants import MODEL, Ground, Model, key_of, write_tenants
from bench.cases.serve.texts import Texts
from hmi.api.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId
from hmi.errors import HmiError, InvalidInput, StorageFull
from hmi.model.files import write_json
from hmi.stores.layout import Layout
from hmi.training.data.corpus import read_documents

ROOT = "minilm"
CORPUS_BYTES = 2_000_000
"""Text that the root's PLOT is built from, and that texts are taken from."""
TENANT_BYTES = 600_000
"""Disk space that a tenant takes at most, its records included."""
FORMAT = 1


@dataclass(frozen=True)
class Home:
    """A data folder with tenants `t00000`, `t00001`, …, each with a model `m`. No server runs on it."""

    folder: Path
    tenants: int
    text_source: str
    """The source of the text."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus.txt"

    def model(self, i: int) -> ModelId:
        """The name of tenant `i`'s model."""
        return ModelId(tenant_of(i), MODEL)

    def key(self, i: int) -> str:
        """The key of tenant `i`."""
        return key_of(tenant_of(i))

    def texts(self) -> Texts:
        """Texts of the corpus by length, of the root's tokenizer."""
        (root,) = (Layout(self.data).roots / ROOT).glob("*/tokenizer.json")
        return Texts(root, self.corpus)


def tenant_of(i: int) -> str:
    return f"t{i:05}"


def build(plan: Plan, folder: Path) -> Home:
    """Make the home in `folder`, or complete the one that an earlier run made there.

    Raises InvalidInput for a folder with a home of another source or text, StorageFull.
    """
    about = {"format": FORMAT, "source": plan.source, "corpus": str(plan.corpus or "")}
    known = folder / "home.json"
    found = json.loads(known.read_text()) if known.exists() else None
    if found is not None and {k: found.get(k) for k in about} != about:
        raise InvalidInput(
            f"{folder} was made from another root or text: use another --data, or delete it", field="data"
        )
    source = str(plan.corpus or "descriptions of the installed packages")
    home = Home(folder, max(plan.tenants, found["tenants"] if found else 0), source)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_corpus(plan, home.corpus)
    done = found["tenants"] if found else 0
    _check_disk(folder, (plan.tenants - done) * TENANT_BYTES)
    local = LocalCalls(Settings(data=home.data))
    try:
        manager = local.services.manager
        if found is None and ROOT not in {root.name for root in manager.registry.roots()}:
            _import_root(local, plan, home)
        models = [Model(tenant_of(i), seed=i) for i in range(done, plan.tenants)]
        for _ in write_tenants(manager, Ground.of(manager, ROOT), models):
            pass
    finally:
        local.close()
    write_json(known, {**about, "tenants": home.tenants})
    return home


def _import_root(local: LocalCalls, plan: Plan, home: Home) -> None:
    options = {"steps": 2, "upper_steps": 1} if plan.learn else {}
    body = {"root": ROOT, "source": plan.source, "options": options}
    job = local.request("POST", "/manage/roots", body, {"text": home.corpus})["job"]
    local.run(job, lambda _: None)
    record = local.services.manager.job(job)
    if record.state != "succeeded":
        raise HmiError(f"the import of {plan.source} failed: {record.error}")


def _write_corpus(plan: Plan, path: Path) -> None:
    """Write up to CORPUS_BYTES of documents, one a line."""
    documents = installed_text() if plan.corpus is None else read_documents(plan.corpus)
    size = 0
    with path.open("w") as file:
        for document in documents:
            file.write(document + "\n")
            size += len(document)
            if size > CORPUS_BYTES:
                return


def installed_text() -> list[str]:
    """Return English prose that every installation has: descriptions of packages, one paragraph each."""
    found = []
    for package in importlib.metadata.distributions():
        text = str(package.metadata.json.get("description", ""))
        found += [" ".join(p.split()) for p in text.split("\n\n") if len(p.split()) > 4]
    return found


def _check_disk(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise StorageFull(
            f"{need / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free: use --data, or fewer --tenants"
        )
