"""The training of a tenant's model that writes: LoRA in the upper layers of a language model.

What it shares with other models' training is in `hmi.jobs.model.fine_tune`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hmi.core import ModelVersion
from hmi.errors import NotFound
from hmi.execution.decoding.base import PAGE, StepExecutor
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.decoding.writing import Answer, Writing
from hmi.jobs.model.comparing import Comparison, HeldOutAnswers
from hmi.jobs.model.tenant_training import Start, TrainedModel
from hmi.jobs.model.training_data import Data
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.model.sources.generative_root import GenerativeRoot, load_generative_root
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import TenantModule, module_from, new_module
from hmi.sizes import counted
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row
from hmi.training.fit.checkpoint import CHECKPOINT, Resumed, resume_training, write_training
from hmi.training.fit.early_stopping import History, train_to_best
from hmi.training.fit.plan import TrainPlan, plan_writing
from hmi.training.tasks.remarks import size_remarks
from hmi.training.writing.lookup import RowsOf, rows_from_plot
from hmi.training.writing.scoring import perplexity, score_written
from hmi.training.writing.texts import Written, fitting, within
from hmi.training.writing.trainer import WritingTrainer

MOST_ANSWERS, MOST_TOKENS = 64, 64
"""A report's answers: those to the first held-out rows whose completions have at most so many tokens."""
AT_ONCE = 16
"""Answers that are written together. Each takes memory for its keys and values."""


def train_writing(
    ctx: JobContext, options: FineTuneOptions, start: Start, root: GenerativeRoot, plot: str, data: Data
) -> TrainedModel:
    """Train a model on prompts and completions. A run that is resumed goes on from the checkpoint.

    plot: the PLOT version to look rows up in. Raises InvalidData (diverged, no row is short enough, the
    model's template refuses a chat).
    """
    max_length = min(options.max_length, root.info.shape.positions)
    fit = [fitting(rows, root.tokenizer, max_length, name) for rows, name in _files(data)]
    train, dev = ([text for text in texts if text is not None] for texts in fit)
    warnings = [*data.notes, *_too_long(fit, max_length), *size_remarks(dev, data.dev_given)]
    torch.manual_seed(options.seed)
    module = new_module(data.module, root.info.shape, len(root.upper.layers))
    plan = plan_writing(replace(options.recipe(), module=data.module), [len(text.answer) for text in train])
    with ctx.plots.reader(plot) as reader:
        rows_of = rows_from_plot(reader, root.upper.first)
        trainer = WritingTrainer(root.upper, module, rows_of, plan, train)
        trainer.watch = ctx.check
        history, published, remark = _trained(ctx, options, start, trainer, dev)
        # Score the rounded weights that users get, in the arithmetic of exact answers.
        losses, plain = trainer.losses(dev, exact=True), trainer.losses(dev, exact=True, plain=True)
        figures = _answers(ctx, root, rows_of, module, fit[1], data.dev)
    metrics: dict[str, Any] = {
        "rows": len(dev),
        "perplexity": round(perplexity(losses), 4),
        "root_perplexity": round(perplexity(plain), 4),
        **figures,
        "epoch": history.kept.epoch,
        "epochs": plan.epochs,
        "epochs_run": history.epochs,
        "train_rows": len(train),
        "too_long_rows": fit[0].count(None),
        "too_long_held_out_rows": fit[1].count(None),
        "chats": sum(isinstance(r.label, Completion) and bool(r.label.chat) for r in data.train),
        "read": data.read,
        "warnings": [*warnings, *([remark] if remark else [])],
    }
    answers = HeldOutAnswers(data.task, _spread(losses, fit[1]))
    return TrainedModel(answers, published, max_length, metrics, afresh=remark)


def _files(data: Data) -> list[tuple[list[Row], str]]:
    return [(data.train, "data"), (data.dev, "dev" if data.dev_given else "data")]


def _too_long(fit: Sequence[Sequence[Written | None]], max_length: int) -> list[str]:
    """A remark on the training rows and the held-out rows that were left out."""
    left = [
        f"{texts.count(None):,} of {counted(len(texts), f'{name} row')}"
        for texts, name in zip(fit, ("training", "held-out"), strict=True)
        if None in texts
    ]
    if not left:
        return []
    return [
        f"left out: {' and '.join(left)}. Their prompt and completion have more than {max_length} tokens "
        "together, and neither is cut"
    ]


def _trained(
    ctx: JobContext, options: FineTuneOptions, start: Start, trainer: WritingTrainer, dev: list[Written]
) -> tuple[History, Artefact, str | None]:
    """Train, with a checkpoint after each epoch. Returns the best epoch's weights, rounded, which the trainer
    has then, and a remark on what training started from."""
    checkpoint = ctx.folder / CHECKPOINT
    begun = resume_training(checkpoint, trainer)
    if begun is None:
        begun = Resumed(History(), start(trainer))

    def keep(history: History) -> None:
        write_training(checkpoint, trainer, history, begun.remark)
        ctx.checkpointed()

    history = train_to_best(
        trainer,
        lambda: {"perplexity": perplexity(trainer.losses(dev))},
        lambda step, total, loss: ctx.progress(step, total, phase="fine-tuning", loss=loss),
        start=begun.history,
        after_epoch=keep,
    )
    published = trainer.publishable(history.kept.artefact, options.rest or "fp16")
    return history, published, begun.remark


def _spread(losses: Tensor, texts: Sequence[Written | None]) -> list[Tensor]:
    """The losses of all rows; those of rows that were left out have no tokens."""
    found = iter(losses)
    return [torch.zeros(2) if text is None else next(found) for text in texts]


def _answers(
    ctx: JobContext,
    root: GenerativeRoot,
    rows_of: RowsOf,
    module: TenantModule,
    texts: Sequence[Written | None],
    rows: Sequence[Row],
) -> dict[str, Any]:
    """Figures of the model's greedy answers to some held-out rows; none if all completions are long."""
    short = [
        (text, row.label.text)
        for text, row in zip(texts, rows, strict=True)
        if text is not None and isinstance(row.label, Completion) and len(text.answer) <= MOST_TOKENS
    ][:MOST_ANSWERS]
    prompts = [text.prompt for text, _ in short]
    got = greedy_answers(
        root, rows_of, module, prompts, lambda done, total: ctx.progress(done, total, phase="writing answers")
    )
    return score_written([gold for _, gold in short], got) if short else {}


def greedy_answers(
    root: GenerativeRoot,
    rows_of: RowsOf,
    module: TenantModule | None,
    prompts: Sequence[list[int]],
    report: Callable[[int, int], None] = lambda done, total: None,
    executor: StepExecutor | None = None,
) -> list[str]:
    """The most likely answer to each prompt, token by token, of at most MOST_TOKENS tokens.

    report: told the answers that have ended, and of how many. executor: of the root's upper layers; None:
    PlainDecoder, in fp32.
    """
    ends, n = frozenset(root.tokenizer.ends), root.info.n
    answers = [Answer("report", prompt, MOST_TOKENS, ends, module) for prompt in prompts]

    def some_rows(wanted: Sequence[tuple[Answer, int, int]]) -> Tensor:
        """The rows of some of the sequences' ids. A row depends on the n - 1 ids before it."""
        found = []
        for answer, begin, end in wanted:
            since = max(begin - n + 1, 1)
            rows = rows_of(torch.tensor([[answer.ids[0], *answer.span(since, end)]]))[0]
            found.append(rows[:end] if begin == 0 else rows[1 + begin - since :])
        return torch.cat(found)

    for begin in range(0, len(answers), AT_ONCE):
        some = answers[begin : begin + AT_ONCE]
        pages = sum(-(-(len(answer.prompt) + MOST_TOKENS) // PAGE) for answer in some)
        writing = Writing(executor or PlainDecoder(root.upper, pages), some_rows)
        for answer in some:
            writing.add(answer)
        while len(writing):
            report(begin + len(some) - len(writing), len(answers))
            writing.step()
    return [root.tokenizer.decode(answer.written) for answer in answers]


def losses_of(ctx: JobContext, root: GenerativeRoot, live: ModelVersion, dev: Sequence[Row]) -> list[Tensor]:
    """Each row's loss and its number of tokens, by a version with its own weights, PLOT and root.

    A row that is too long for the version counts nothing. Raises Damaged, NotFound (no row counts).
    """
    if (root.info.name, root.info.version) != (live.root, live.root_version):
        root = load_generative_root(ctx.roots.folder(live.root, live.root_version))
    artefact = Artefact.split(ctx.adapters.get(live.artefact)).map(lambda value: value.float())
    texts = within(dev, root.tokenizer, live.max_length, "dev")
    if not any(texts):
        raise NotFound(f"no held-out row has at most {live.max_length} tokens", field="dev")
    plan = TrainPlan("generation", 0, lr=1e-3, epochs=1, batch=1, seed=0)
    with ctx.plots.reader(live.plot_version) as reader:
        rows_of = rows_from_plot(reader, root.upper.first)
        trainer = WritingTrainer(root.upper, module_from(artefact.module), rows_of, plan, [])
        trainer.watch = ctx.check
        losses = trainer.losses([text for text in texts if text is not None], exact=True)
    return _spread(losses, texts)


def compare_losses(old: Sequence[Tensor], new: Sequence[Tensor]) -> Comparison:
    """Compare two versions by the losses of the same rows, of which those count that both can read.

    The new one is worse if its mean loss a token is greater by more than one standard error of the
    difference.
    """
    before, after = (torch.stack(list(side)).double() for side in (old, new))
    both = (before[:, 1] > 0) & (after[:, 1] > 0)
    before, after, count = before[both], after[both], int(both.sum())
    tokens = after[:, 1].sum().clamp(min=1)
    gap = (after - before)[:, 0]
    mean = gap.sum() / tokens
    spread = (gap - mean * after[:, 1]).square().sum() * count / max(1, count - 1)
    error = float(spread.sqrt() / tokens)
    was, is_ = perplexity(before), perplexity(after)
    slack = was * (math.exp(error) - 1)
    scores = {"metric": "perplexity", "live_score": round(was, 4), "score": round(is_, 4)}
    worse = None if float(mean) <= error + 1e-9 else f"worse by more than {slack:.3f}"
    return Comparison(count, {**scores, "tolerance": round(slack, 4)}, worse)
