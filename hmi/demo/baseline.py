"""Dedicated copies: the root's source model, fully fine-tuned for one task. What the tenants' models are held against.

Same rows, same seed, same head on the same token as a tenant's model; the learning rate and the epoch are chosen on
dev, and the test rows are looked at once. Results are kept, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import Task
from hmi.demo.folder import TenantFolder
from hmi.demo.steps import Steps
from hmi.jobs.fine_tune import Split, evaluate, targets_of
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.rows import labels_of, read_rows
from hmi.model.batching import length_grouped, pad_ids
from hmi.model.encoder import Encoder
from hmi.model.files import write_json
from hmi.model.heads import Head, head_input
from hmi.model.scoring import headline
from hmi.model.source import DEFAULT_PACKAGE, find_source, load_encoder
from hmi.model.tokenizer import Tokenizer
from hmi.model.training import IGNORE

LEARNING_RATES = (2e-5, 5e-5, 1e-4)
EPOCHS = 8
PATIENCE = 3
"""Epochs without a gain on dev after which a run ends."""
_TASKS = 3
_WARM_UP = 0.06

Report = Callable[[str], None]


@dataclass(frozen=True)
class Dedicated:
    """The copy that was best on dev: its score on test, and what it costs to keep."""

    model: str
    lr: float
    epoch: int
    dev: float
    test: float
    bytes: int


@dataclass(frozen=True)
class Problem:
    """One task, tokenised. `rows` are Splits by name, `targets` label ids as in fine-tuning."""

    tenant: TenantFolder
    labels: tuple[str, ...]
    splits: Mapping[str, Split]
    targets: Sequence[Sequence[int]]
    options: FineTuneOptions


def choose(tenants: Sequence[TenantFolder]) -> list[TenantFolder]:
    """Three tenants: the first of each kind of task, then the first ones left."""
    firsts = [next(t for t in tenants if t.task == task) for task in dict.fromkeys(t.task for t in tenants)]
    return [*firsts, *(t for t in tenants if t not in firsts)][:_TASKS]


def train_dedicated(tenants: Sequence[TenantFolder], kept: Path, mark: str, steps: Steps) -> list[Dedicated]:
    """Train, or read from `kept`, the copies. `mark` names the text: results on other text are not reused."""
    source = find_source(DEFAULT_PACKAGE)
    encoder, tokenizer = load_encoder(source.folder), Tokenizer(source.folder / "tokenizer.json")
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    out = []
    for tenant in tenants:
        problem = _problem(tenant, tokenizer)
        tries = []
        for lr in LEARNING_RATES:
            key = f"{mark} {tenant.id} {lr:g}"
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


def _problem(tenant: TenantFolder, tokenizer: Tokenizer) -> Problem:
    options = FineTuneOptions(**tenant.options)
    paths = {"train": tenant.train, "dev": tenant.dev or tenant.train, "test": tenant.test}
    rows = {name: read_rows(path, tenant.task, field=name) for name, path in paths.items()}
    if tenant.dev is None:
        held = max(1, len(rows["train"]) // 10)
        rows["train"], rows["dev"] = rows["train"][:-held], rows["train"][-held:]
    splits = {n: Split(r, tokenizer.encode([x.text for x in r], options.max_length)) for n, r in rows.items()}
    labels = labels_of([*rows["train"], *rows["dev"]])
    return Problem(tenant, labels, splits, targets_of(tenant.task, labels, splits["train"]), options)


class _Copy(nn.Module):
    """An encoder of its own and a head of the tenants' own kind."""

    def __init__(self, encoder: Encoder, labels: int, task: Task) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(True)
        self.head = Head(encoder.shape.dim * (3 if task == "pair" else 1), labels)
        self._task = task

    def forward(self, split: Split, rows: Sequence[int], dropout: float = 0.0) -> Tensor:
        """Logits [B, labels] of sequence tasks, [B, T, labels] of tagging."""
        encoded = [split.encoded[i] for i in rows]
        ids, types = pad_ids([e.ids for e in encoded]), pad_ids([e.types for e in encoded])
        mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(e) for e in encoded])[:, None]
        hidden = self.encoder(ids, mask, types, dropout=dropout)
        logits: Tensor = self.head(self._read(hidden, types, mask), dropout)
        return logits

    def _read(self, hidden: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """The usual [CLS] row for classification; for pairs the tenants' own comparison, which is the stronger."""
        if self._task == "classification":
            return hidden[:, 0]
        return head_input(self._task, hidden, hidden, types, mask)


def _fine_tune(problem: Problem, encoder: Encoder, lr: float, steps: Steps) -> Dedicated:
    """One learning rate: train, keep the epoch that is best on dev, look at test with that one."""
    torch.manual_seed(problem.options.seed)
    model = _Copy(encoder, len(problem.labels), problem.tenant.task)
    best, best_epoch, best_state = -1.0, 0, {k: v.clone() for k, v in model.state_dict().items()}
    for epoch in _epochs(problem, model, lr, steps):
        score = _score(problem, model, "dev")
        if score > best:
            best, best_epoch, best_state = score, epoch, {k: v.clone() for k, v in model.state_dict().items()}
        if epoch - best_epoch >= PATIENCE:
            break
    model.load_state_dict(best_state)
    size = sum(4 * p.numel() for p in model.parameters())
    return Dedicated(problem.tenant.id, lr, best_epoch, best, _score(problem, model, "test"), size)


def _epochs(problem: Problem, model: _Copy, lr: float, steps: Steps) -> Iterator[int]:
    """AdamW with warm-up and linear decay; yields the number of each epoch that ended."""
    train, options = problem.splits["train"], problem.options
    lengths = [len(e) for e in train.encoded]
    total = EPOCHS * -(-len(lengths) // options.batch)
    head = {"params": list(model.head.parameters()), "lr": max(lr, 1e-3)}
    optimiser = torch.optim.AdamW([{"params": list(model.encoder.parameters()), "lr": lr}, head], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda s: min((s + 1) / (_WARM_UP * total), max(0.0, (total - s) / ((1 - _WARM_UP) * total)))
    )
    with steps.bar() as bar:
        task = bar.add_task(f"{problem.tenant.id} lr {lr:g}", total=total)
        for epoch in range(1, EPOCHS + 1):
            for rows in length_grouped(lengths, options.batch, random.Random(options.seed * 1009 + epoch)):
                logits = model(train, rows, options.dropout)
                loss = F.cross_entropy(logits.flatten(0, -2), _targets(problem, rows, logits), ignore_index=IGNORE)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                bar.advance(task)
            yield epoch


def _targets(problem: Problem, rows: Sequence[int], logits: Tensor) -> Tensor:
    """Label ids, flat, padded with IGNORE to the width of the logits."""
    width = 1 if logits.dim() == 2 else logits.shape[1]
    out = torch.full((len(rows), width), IGNORE)
    for i, row in enumerate(rows):
        target = problem.targets[row]
        out[i, : len(target)] = torch.tensor(target)
    return out.flatten()


@torch.inference_mode()
def _score(problem: Problem, model: _Copy, name: str) -> float:
    split = problem.splits[name]
    logits: list[Tensor] = [torch.empty(0)] * len(split.rows)
    for rows in length_grouped([len(e) for e in split.encoded], 64, None):
        for i, row in enumerate(model(split, rows)):
            logits[rows[i]] = row
    return headline(evaluate(problem.tenant.task, problem.labels, split, logits))
