"""Dedicated copies: the root's source model, fully fine-tuned for one task, to compare tenants' models with.

Rows, seed, head and training are the same as a tenant's model's. Dev chooses the learning rate and the epoch,
and the test rows are scored once. Results are stored, so that an interrupted run continues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmi.demo.folder import TenantFolder
from hmi.demo.steps import Steps
from hmi.jobs.options import FineTuneOptions
from hmi.model.files import write_json
from hmi.model.network.encoder import Encoder
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.model.tasks import TaskKind
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.rows import read_labelled_rows
from hmi.training.fit.backbones import EncoderBackbone
from hmi.training.fit.early_stopping import train_to_best
from hmi.training.fit.plan import plan_training
from hmi.training.fit.trainer import Trainer
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import encoder_examples
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.scoring import headline
from hmi.training.tasks.splits import Split, judge, task_targets

LEARNING_RATES = (2e-5, 5e-5, 1e-4)
RECIPE_VERSION = 2
"""A part of a stored result's key. Raise it when the training changes, so that old results are not reused."""
_TASKS = 3


@dataclass(frozen=True)
class Dedicated:
    """The copy that was best on dev, with its score on test and its size."""

    model: str
    lr: float
    epoch: int
    dev: float
    test: float
    bytes: int


@dataclass(frozen=True)
class TokenisedTask:
    """A tokenised task."""

    tenant: TenantFolder
    task: TaskKind
    splits: Mapping[str, Split]
    recipe: Recipe


def choose(tenants: Sequence[TenantFolder]) -> list[TenantFolder]:
    """Return three tenants: the first of each kind of task, then the first of the rest. None writes: its root
    is another."""
    tenants = [tenant for tenant in tenants if not tenant.writes]
    firsts = [next(t for t in tenants if t.task == task) for task in dict.fromkeys(t.task for t in tenants)]
    return [*firsts, *(t for t in tenants if t not in firsts)][:_TASKS]


def train_dedicated(tenants: Sequence[TenantFolder], kept: Path, mark: str, steps: Steps) -> list[Dedicated]:
    """Train the copies, or read their results from `kept`.

    `mark` identifies the text: results on other text are not reused.
    """
    source = find_source(DEFAULT_PACKAGE)
    encoder, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    out = []
    for tenant in tenants:
        problem = _problem(tenant, tokenizer)
        tries = []
        for lr in LEARNING_RATES:
            key = f"{RECIPE_VERSION} {mark} {tenant.id} {lr:g}"
            if key not in known:
                known[key] = asdict(_fine_tune(problem, encoder, lr, steps))
                write_json(kept, known)
            tries.append(Dedicated(**known[key]))
            steps.say(f"{tenant.id} with lr {lr:g}: {tries[-1].dev:.3f} on dev after epoch {tries[-1].epoch}")
        out.append(max(tries, key=lambda t: t.dev))
    return out


def ratio(values: Mapping[str, float], copy: Dedicated) -> float:
    return values[copy.model] / max(1e-9, copy.test)


def mean_ratio(values: Mapping[str, float], dedicated: Sequence[Dedicated]) -> float:
    return sum(ratio(values, d) for d in dedicated) / len(dedicated)


def _problem(tenant: TenantFolder, tokenizer: Tokenizer) -> TokenisedTask:
    recipe = FineTuneOptions(**tenant.options).recipe()
    paths = {"train": tenant.train, "dev": tenant.dev or tenant.train, "test": tenant.test}
    rows = {name: read_labelled_rows(path, tenant.task, field=name) for name, path in paths.items()}
    if tenant.dev is None:
        held = max(1, int(recipe.held_out.share * len(rows["train"])))
        rows["train"], rows["dev"] = rows["train"][:-held], rows["train"][-held:]
    splits = {n: Split(r, tokenizer.encode([x.text for x in r], recipe.max_length)) for n, r in rows.items()}
    golds = [row.label for row in [*rows["train"], *rows["dev"]]]
    return TokenisedTask(tenant, learn_task(tenant.task, golds, paired=tenant.task == "pair"), splits, recipe)


def _fine_tune(problem: TokenisedTask, encoder: Encoder, lr: float, steps: Steps) -> Dedicated:
    """Train at one learning rate, keep the epoch that is best on dev, and score test with it."""
    kind, targets = problem.task, task_targets(problem.task, problem.splits["train"])
    plan = plan_training(problem.recipe.plain(lr), kind, len(targets))
    train = encoder_examples(problem.splits["train"].encoded, targets)
    trainer = Trainer(EncoderBackbone(encoder), encoder.shape.dim, plan, train)
    with steps.bar() as bar:
        task = bar.add_task(f"{problem.tenant.id} lr {lr:g}", total=trainer.total)
        best = train_to_best(
            trainer,
            lambda: _evaluate_split(problem, trainer, "dev"),
            lambda step, total, loss: bar.update(task, completed=step),
        ).kept
    trainer.load(best.artefact)
    size = sum(4 * tensor.numel() for tensor in best.artefact.joined().values())
    return Dedicated(
        problem.tenant.id,
        lr,
        best.epoch,
        best.score,
        headline(_evaluate_split(problem, trainer, "test")),
        size,
    )


def _evaluate_split(problem: TokenisedTask, trainer: Trainer, name: str) -> dict[str, Any]:
    split = problem.splits[name]
    outputs = trainer.predict(encoder_examples(split.encoded, [[]] * len(split.rows)))
    return judge(problem.task, split, outputs)
