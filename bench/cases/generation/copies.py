"""A dedicated copy of a language model: all of its weights are trained on the rows of one tenant.

It is trained by the loop that trains tenants, on the same rows, for as many epochs, with averaged weights and
the best epoch kept. Its learning rate is searched for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.cases.quality.cells import reset_peak
from bench.cases.quality.tasks import TaskRows
from hmi.execution.decoding.compiled import CompiledDecoder
from hmi.execution.precision import available
from hmi.jobs.model.generation import greedy_answers
from hmi.model.sources.generative_root import GenerativeRoot, UpperDecoder, split_decoder
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.root import GenerativeRootInfo
from hmi.model.sources.source import Source
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import TenantModule
from hmi.resident import peak_resident
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row
from hmi.training.fit.early_stopping import train_to_best
from hmi.training.fit.plan import TrainPlan, plan_writing
from hmi.training.plans.defaults import BATCH
from hmi.training.plans.recipe import RECIPE
from hmi.training.writing.lookup import RowsOf
from hmi.training.writing.scoring import perplexity, score_written
from hmi.training.writing.texts import fitting
from hmi.training.writing.trainer import WritingTrainer

RATES = (1.5e-5, 3e-5, 6e-5, 1.2e-4, 2.4e-4, 4.8e-4, 9.6e-4)
READS = 512
"""The most tokens of a row, as the service's default."""
SERVED_PAGES = 256
"""Room for 4,096 tokens of keys and values, far more than the answers that are written together have."""


@dataclass
class CopyRun:
    """A trained copy."""

    lr: float
    result: dict[str, Any]
    weights: Artefact
    """In fp16, as a tenant's are."""


def train_copy(
    info: GenerativeRootInfo,
    source: Source,
    rows: TaskRows,
    lr: float,
    seed: int,
    report: Callable[[str, int, int], None],
) -> CopyRun:
    """Train a copy of `source` at a rate, and score dev. The best epoch is that of the least perplexity.

    info: of a root of the source. The result's `dev` is the exact match; of equal ones the lower perplexity
    counts more.
    """
    begun, anew = time.process_time(), reset_peak()
    torch.manual_seed(seed)
    root = fresh_copy(info, source)
    copy = root.upper
    train, dev = (_texts(root, part) for part in (rows.train, rows.dev))
    plan = plan_writing(replace(RECIPE, batch=BATCH, lr=lr, seed=seed), [len(text.answer) for text in train])
    trainer = WritingTrainer(copy, copy, rows_of_copy(copy), plan, train)
    history = train_to_best(
        trainer,
        lambda: {"perplexity": perplexity(trainer.losses(dev))},
        lambda step, total, loss: report(f"copy, lr {lr:g}", step, total),
    )
    weights = trainer.publishable(history.kept.artefact)
    scored = scores(root, rows_of_copy(copy), None, rows.dev)
    result = {
        "dev": scored["exact_match"] + 1e-3 / scored["perplexity"],
        "dev_scores": scored,
        "epoch": history.kept.epoch,
        "epochs": plan.epochs,
        "cpu_s": round(time.process_time() - begun, 1),
        "peak_bytes": peak_resident() if anew else None,
    }
    return CopyRun(lr, result, weights)


def fresh_copy(info: GenerativeRootInfo, source: Source) -> GenerativeRoot:
    """A root of all layers of the source, to be trained. Words enter with the weights that score them."""
    model = load_language_model(source)
    assert model.decoder.shape.tied, "words that enter otherwise than they are scored are not trained here"
    _, copy = split_decoder(model.decoder, 0, model.tokenizer.begin, 1)
    return GenerativeRoot(info, copy.eval().requires_grad_(True), model.tokenizer)


def copy_scores(
    info: GenerativeRootInfo, source: Source, run: CopyRun, rows: Sequence[Row]
) -> dict[str, Any]:
    """Score a trained copy. Returns what `scores` returns."""
    root = fresh_copy(info, source)
    root.upper.load_state_dict(dict(run.weights.module))
    return scores(root, rows_of_copy(root.upper), None, rows)


def rows_of_copy(copy: UpperDecoder) -> RowsOf:
    """ids [B, T] -> the words' vectors [B, T, dim]."""

    def rows_of(ids: Tensor) -> Tensor:
        return F.embedding(ids, copy.scores.weight)

    return rows_of


def scores(
    root: GenerativeRoot, rows_of: RowsOf, module: TenantModule | None, rows: Sequence[Row]
) -> dict[str, Any]:
    """The perplexity of all rows in fp32, and the figures of greedy answers to all prompts.

    The job reports the same of fewer rows. module: a tenant's; None: the layers of `root` as they are.
    """
    texts = _texts(root, rows)
    plan = TrainPlan("generation", 0, lr=1e-3, epochs=1, batch=1, seed=0)
    trainer = WritingTrainer(root.upper, module or root.upper, rows_of, plan, [])
    losses = trainer.losses(texts, exact=True)
    answers = greedy_answers(root, rows_of, module, [text.prompt for text in texts])
    golds = [row.label.text for row in rows if isinstance(row.label, Completion)]
    return {**score_written(golds, answers), "perplexity": round(perplexity(losses), 4)}


def served_scores(
    root: GenerativeRoot, rows_of: RowsOf, module: TenantModule, rows: Sequence[Row]
) -> dict[str, Any]:
    """The figures of greedy answers to all prompts by the server's executor, for each of its precisions.

    `as_fp32` is the share of answers that equal those in fp32.
    """
    prompts = [text.prompt for text in _texts(root, rows)]
    golds = [row.label.text for row in rows if isinstance(row.label, Completion)]
    answers = {
        precision: greedy_answers(
            root, rows_of, module, prompts, executor=CompiledDecoder(root.upper, SERVED_PAGES, precision)
        )
        for precision in available()
    }
    return {
        precision: {
            **score_written(golds, some),
            "as_fp32": score_written(answers["fp32"], some)["exact_match"],
        }
        for precision, some in answers.items()
    }


def _texts(root: GenerativeRoot, rows: Sequence[Row]) -> list[Any]:
    found = fitting(rows, root.tokenizer, READS, "data")
    assert all(found), "all rows are short"
    return found
