"""A data folder for measurements: a root, its PLOT over real text, and tenants with a model each.

The tenants are written through the real stores, without training. A model's weights are random, not zero, and
follow from its seed alone, so that every model differs. A case that needs trained ones runs their jobs with
`ended`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import KeyRecord, ModelId, ModelVersion, ModuleSpec, Progress, Scope, TenantRecord, now
from hmi.errors import HmiError, InvalidInput, StorageFull
from hmi.manager import Manager
from hmi.model.files import write_json
from hmi.model.sources.root import GenerativeRootInfo, RootInfo, read_any_info
from hmi.model.sources.source import DEFAULT_PACKAGE
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.heads import Head, head_input_size, head_queries
from hmi.model.tenant.modules import new_module
from hmi.model.text.tokenizer import Tokenizer
from hmi.modulespec import Kind
from hmi.stores.layout import Layout
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.records import key_table, model_table
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import TENANT, RecordTable
from hmi.training.data.corpus import read_documents
from plot_store import VersionInfo

ROOT, MODEL = "minilm", "m"
"""The names of the root, and of each tenant's model."""
CORPUS_BYTES = 2_000_000
"""Text that the root's PLOT is built from, and that texts are taken from."""
TENANT_BYTES = 600_000
"""Disk space that a tenant takes at most, its records included."""
FORMAT = 1
LABELS = ("a", "b", "c", "d")
MAX_LENGTH = 128
AT_ONCE, WRITERS = 500, 4
"""Tenants of a transaction; threads that write artefacts, since a durable write mostly waits for the disk."""
RANKS = (2, 4, 8, 16, 32)
STD, HEAD_STD = 0.03, 0.05
"""Standard deviations of weights. A module's has the size that training gives; a head's is large enough that
answers differ, and small enough that no score is 1."""
WRITING_STD = 0.1
"""That of a module which writes: so large that two modules rarely write the same text."""
MEAN_LOG, SPREAD_LOG, LEAST, MOST = 3.9, 0.45, 8, 128
"""Real lengths: log-normal, as in sentences of scientific prose; 56 tokens on average."""
LONG_WORD = 6
"""Words of more tokens than this are left out: most are addresses and hashes."""
TRIES = 1_000


@dataclass(frozen=True)
class Contents:
    """The contents of a data folder that `build` makes: root, text and number of tenants."""

    tenants: int
    corpus: Path | None = None
    """Real text, one document a line; None: the descriptions of the installed packages."""
    source: str = DEFAULT_PACKAGE
    """The source of the root's import."""
    learn: bool = False
    """Whether the import learns locality from the text, for a source without locality weights in HMI."""


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

    def texts(self) -> DrawnTexts:
        """Texts of the corpus by length, of the root's tokenizer."""
        (root,) = (Layout(self.data).roots / ROOT).glob("*/tokenizer.json")
        return DrawnTexts(root, self.corpus)


def tenant_of(i: int) -> str:
    return f"t{i:05}"


def key_of(tenant: str) -> str:
    """Return a tenant's key. It follows from the name, so use it in benchmarks only."""
    return "hmi_" + hashlib.sha256(f"hmi bench serve {tenant}".encode()).hexdigest()


def build(wanted: Contents, folder: Path) -> Home:
    """Make the home in `folder`, or complete the one that an earlier run made there.

    Raises InvalidInput for a folder with a home of another source or text, StorageFull, HmiError if the
    import fails.
    """
    about = {"format": FORMAT, "source": wanted.source, "corpus": str(wanted.corpus or "")}
    known = folder / "home.json"
    found = json.loads(known.read_text()) if known.exists() else None
    if found is not None and {k: found.get(k) for k in about} != about:
        raise InvalidInput(
            f"{folder} was made from another root or text: use another --data, or delete it", field="data"
        )
    done = found["tenants"] if found else 0
    source = str(wanted.corpus or "descriptions of the installed packages")
    home = Home(folder, max(wanted.tenants, done), source)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_corpus(wanted.corpus, home.corpus)
    _check_disk(folder, (wanted.tenants - done) * TENANT_BYTES)
    with closing(LocalCalls(Settings(data=home.data))) as calls:
        manager = calls.services.manager
        if found is None and ROOT not in {root.name for root in manager.registry.roots()}:
            options = {"steps": 2, "upper_steps": 1} if wanted.learn else {}
            body = {"root": ROOT, "source": wanted.source, "options": options}
            ended(calls, "/manage/roots", body, {"text": home.corpus})
        models = [HomeModel(tenant_of(i), seed=i) for i in range(done, wanted.tenants)]
        write_tenants(manager, Ground.of(manager, ROOT), models)
    write_json(known, {**about, "tenants": home.tenants})
    return home


def ended(
    calls: LocalCalls,
    path: str,
    body: dict[str, Any],
    files: Mapping[str, Path] | None = None,
    show: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Queue a job, such as a training (`POST path`), run it to its end and return its view.

    show: gets the job's progress. Raises HmiError if the job does not succeed.
    """
    job = calls.request("POST", path, body, files)["job"]
    calls.run(job, show)
    view: dict[str, Any] = calls.request("GET", f"/manage/jobs/{job}")
    if view["state"] != "succeeded":
        raise HmiError(f"job {job} {view['state']}: {(view['error'] or {}).get('message', 'see its log')}")
    return view


def _write_corpus(corpus: Path | None, path: Path) -> None:
    """Write up to CORPUS_BYTES of documents, one a line."""
    size = 0
    with path.open("w") as file:
        for document in installed_text() if corpus is None else read_documents(corpus):
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


@dataclass(frozen=True)
class HomeModel:
    """One version of a tenant's model, before it is stored."""

    tenant: str
    seed: int
    spec: ModuleSpec = field(default_factory=ModuleSpec)
    number: int = 1
    """The version's number."""

    @property
    def id(self) -> ModelId:
        return ModelId(self.tenant, MODEL)


@dataclass(frozen=True)
class Ground:
    """The root and PLOT that the models use. On a language model's root they write."""

    info: RootInfo | GenerativeRootInfo
    plot: VersionInfo

    @classmethod
    def of(cls, manager: Manager, root: str) -> Ground:
        plot = manager.plots.version(root)
        folder = Layout(manager.settings.data).root(root, PlotMeta.of(plot).root_version)
        info = read_any_info(folder)
        assert isinstance(info, RootInfo | GenerativeRootInfo)
        return cls(info, plot)

    @property
    def depth(self) -> int:
        """The number of upper layers."""
        return self.info.shape.layers - self.info.split

    @property
    def writes(self) -> bool:
        return isinstance(self.info, GenerativeRootInfo)


def mixed_spec(i: int) -> ModuleSpec:
    """Return the `i`-th of all combinations of kind and rank."""
    kinds = get_args(Kind)
    return ModuleSpec(kind=kinds[i % len(kinds)], rank=RANKS[i // len(kinds) % len(RANKS)])


def write_tenants(manager: Manager, ground: Ground, models: Sequence[HomeModel]) -> None:
    """Store the models with their tenants and keys.

    In one call, a tenant may have several `models` only if they are versions of one model, in their order. A
    model that exists already does not change. Raises StorageFull.
    """
    with ThreadPoolExecutor(WRITERS) as writers:
        for at in range(0, len(models), AT_ONCE):
            some = models[at : at + AT_ONCE]
            versions = writers.map(lambda m: put_model(manager, ground, m), some)
            publish_at_once(manager, [(m.id, version) for m, version in zip(some, versions, strict=True)])


def publish_at_once(manager: Manager, versions: Sequence[tuple[ModelId, ModelVersion]]) -> None:
    """Publish versions in one transaction, with the tenants and keys that are missing."""

    def body(table: RecordTable, txn: RegistryTxn) -> None:
        for model, version in versions:
            _add_tenant(table, txn, model.tenant)
            model_table.publish_model(table, txn, model, version)

    in_one_transaction(manager.settings.data, body)


def in_one_transaction(data: Path, body: Callable[[RecordTable, RegistryTxn], None]) -> None:
    """Change the registry of a data folder."""
    database = RegistryDatabase.open(Layout(data).registry)
    try:
        database.write(lambda txn: body(RecordTable(), txn))
    finally:
        database.release()


def put_model(manager: Manager, ground: Ground, model: HomeModel) -> ModelVersion:
    """Store a model's artefact and return the record of its version. Raises StorageFull."""
    artefact, size = manager.adapters.put(tensors_of(ground, model).joined())
    return ModelVersion(
        version=model.number,
        artefact=artefact,
        domain=ground.plot.ref,
        plot_version=ground.plot.id,
        root=ground.info.name,
        root_version=ground.info.version,
        task="generation" if ground.writes else "classification",
        labels=() if ground.writes else LABELS,
        module=model.spec,
        max_length=min(MAX_LENGTH, ground.info.shape.positions),
        metrics={},
        bytes=size,
        created=now(),
        job=f"{model.tenant}-{model.number}",
    )


def tensors_of(ground: Ground, model: HomeModel) -> Artefact:
    """Return a model's tensors in fp16, which are stored: a module, and the head of a classification."""
    g = torch.Generator().manual_seed(model.seed)
    with torch.random.fork_rng(devices=[]):
        module = new_module(model.spec, ground.info.shape, ground.depth)
        head = None if ground.writes else _head(ground.info.shape.dim)

    def drawn(part: nn.Module | None, std: float) -> dict[str, Tensor]:
        state = {} if part is None else part.state_dict()
        return {name: torch.randn(value.shape, generator=g).mul_(std) for name, value in state.items()}

    changed = drawn(module, WRITING_STD if ground.writes else STD)
    return Artefact(changed, drawn(head, HEAD_STD)).map(lambda value: value.half())


def _head(dim: int) -> Head:
    queries = head_queries("cls", len(LABELS))
    return Head(head_input_size("classification", dim), len(LABELS), queries=queries, dim=dim)


def _add_tenant(table: RecordTable, txn: RegistryTxn, tenant: str) -> None:
    if txn.get(TENANT + tenant) is not None:
        return
    table.put(txn, TENANT + tenant, TenantRecord(tenant=tenant, created=now()))
    sha256 = hashlib.sha256(key_of(tenant).encode()).hexdigest()
    scopes: tuple[Scope, ...] = ("infer", "manage")
    key = KeyRecord(key_id=f"k{sha256[:16]}", sha256=sha256, tenant=tenant, scopes=scopes, created=now())
    key_table.put_key(table, txn, key)


def real_length(draw: np.random.Generator) -> int:
    """Draw the tokens of a text."""
    return int(np.clip(draw.lognormal(MEAN_LOG, SPREAD_LOG), LEAST, MOST))


class DrawnTexts:
    """Draws texts of a given number of tokens, cut from real text at its words.

    Two with the same seed draw the same texts.
    """

    def __init__(self, tokenizer: Path, corpus: Path, seed: int = 0) -> None:
        """Read the corpus and tokenise its words."""
        words, self._tokenizer = corpus.read_text().split(), Tokenizer(tokenizer)
        pieces = [len(e.ids) - 2 for e in self._tokenizer.encode(words, LONG_WORD + 3)]
        kept = [(w, n) for w, n in zip(words, pieces, strict=True) if 0 < n <= LONG_WORD]
        self._words = [w for w, _ in kept]
        self._ends = np.cumsum([0, *(n for _, n in kept)])
        self._draw = np.random.default_rng(seed)

    def of(self, tokens: int | None, count: int) -> list[str]:
        """Return `count` texts of exactly `tokens` tokens, [CLS] and [SEP] included; None: real lengths."""
        return [self._one(real_length(self._draw) if tokens is None else tokens) for _ in range(count)]

    def tokens(self, text: str) -> int:
        """Return the tokens of a text, at most MOST."""
        return len(self._tokenizer.encode([text], MOST)[0])

    def _one(self, tokens: int) -> str:
        for _ in range(TRIES):
            start = int(self._draw.integers(0, len(self._words)))
            want = self._ends[start] + tokens - 2
            end = int(np.searchsorted(self._ends, want))
            if end < len(self._ends) and self._ends[end] == want:
                return " ".join(self._words[start:end])
        raise AssertionError(f"the text has no run of words with {tokens} tokens")
