"""Measures answers of trained models: entities from raw text, and texts that a model does not know.

    python scripts/measure_answers.py words DATA TENANT.MODEL TEST
    python scripts/measure_answers.py known DATA TENANT.MODEL OWN FOREIGN…

DATA is a data folder that no server uses. `words` joins the words of labelled rows to raw texts, by rules of
written English that know nothing of the model's patterns, and prints the entity F1 from given words and from
raw text, with several ways to split. `known` prints for each file of foreign texts the AUROC of the
similarity, of the score and of the energy, the share that is refused, and the share that would be at a
threshold that refuses 3% of the own texts and their sentences together; `own` and `sentences` are the shares
of own texts, and of a sentence of each, that are refused. Rows are JSON, one a line, with `tokens` and
`tags`, or with `text`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import BertPreTokenizer

from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine.admit.bundles import Bundles
from hmi.jobs.stage.profile_tokens import Answering
from hmi.model.tags.entities import groups_of
from hmi.model.tags.tag_schemes import to_bio
from hmi.model.tasks.words import Tagging
from hmi.model.tenant.novelty_threshold import threshold_of
from hmi.model.text.splitting import ESCAPES, Span, Splitter, SplitText, splitter_of
from hmi.training.data.rows import Row
from hmi.training.fit.features import features_of, plot_rows
from hmi.training.tasks.splits import encoded_split, merged_outputs

TO_LEFT = frozenset(
    [",", ".", ";", ":", "!", "?", ")", "]", "}", "%", "''", "'s", "n't", "'re", "'ve", "'ll", "'d"]
)
"""Words before which written text has no space."""
TO_RIGHT = frozenset(["(", "[", "{", "$", "``"])
"""Words after which it has none."""
ROWS = 400
"""The rows of a test, at most."""
Entities = set[tuple[str, int, int]]


def joined(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join words to a text as written English has it, and return each word's place."""
    words, text, spans = [ESCAPES.get(word, word) for word in words], "", list[Span]()
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        around = i > 1 and words[i - 2][-1].isalnum() and word[0].isalnum()
        tight = i == 0 or word in TO_LEFT or before in TO_RIGHT or (before in ("-", "/", "'") and around)
        inner = i + 1 < len(words) and before[-1:].isalnum() and words[i + 1][0].isalnum()
        tight |= word in ("-", "/", "'") and inner
        tight |= before in (".", ",") and around and words[i - 2].isdigit() and word.isdigit()
        text += word if tight else f" {word}"
        spans.append((len(text) - len(word), len(text)))
    return text, spans


class Model:
    """One trained model, which answers in this process."""

    def __init__(self, data: Path, name: str) -> None:
        manager = LocalCalls(Settings(data=data)).services.manager
        bundles = Bundles(data, manager.registry, manager.plots, manager.adapters, manager.lowers)
        self.version = manager.registry.model(ModelId.parse(name)).live
        self.part = bundles.load_task_part(self.version.artefact)
        self.answering = Answering(bundles, ModelId.parse(name), self.version, self.part)
        self.task = self.answering.bundle.task.with_transitions(self.part.transitions)

    def outputs(self, texts: Sequence[str | list[str]]) -> list[NDArray[np.float32]]:
        """The merged output for each text."""
        bundle = self.answering.bundle
        rows = [Row(text, "") for text in texts]
        split = encoded_split(
            rows, bundle.root.tokenizer, self.version.max_length, windows=self.version.rules.windows
        )
        answered = self.answering.answer(split, 0, lambda done: None)
        return [merged.numpy() for merged in merged_outputs(self.task, split, answered.outputs)]

    def similarities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The similarity of each text to the model's own texts, from its first window."""
        bundle, found = self.answering.bundle, list[NDArray[np.float32]]()
        own = self.part.own_texts
        assert own is not None, "the model keeps no record of its own texts: train it again"
        for text in texts:
            windows = bundle.root.tokenizer.encode([text], self.version.max_length)
            rows = plot_rows(bundle.reader, windows)
            if own.others is None:
                rows = features_of(bundle.root, bundle.reader, windows)
            found.append(own.similarities(rows[0].numpy().mean(0)[None], [len(windows[0])]))
        return np.concatenate(found)


def words(model: Model, test: Path) -> None:
    """Print entity F1 from given words and from raw text."""
    assert isinstance(model.task, Tagging)
    rows = [row for row in _rows(test) if any(tag != "O" for tag in row["tags"])][:ROWS]
    raw = [joined(row["tokens"]) for row in rows]
    gold = [_entities(row["tags"], spans) for row, (_, spans) in zip(rows, raw, strict=True)]
    bert = BertPreTokenizer()

    def cut(find: Callable[[str], list[Span]]) -> Callable[[str], SplitText]:
        return lambda text: SplitText([text[a:b] for a, b in find(text)], find(text))

    ways: dict[str, Callable[[str], SplitText]] = {
        "the model's patterns": splitter_of(model.version.rules.words).split,
        "the defaults": Splitter().split,
        "white space": cut(lambda text: [found.span() for found in re.finditer(r"\S+", text)]),
        "BERT's words": cut(lambda text: [place for _, place in bert.pre_tokenize_str(text)]),
    }
    given = [SplitText(row["tokens"], spans) for row, (_, spans) in zip(rows, raw, strict=True)]
    print(f"given words: entity F1 {_f1(gold, _found(model, given)):.4f}, {len(rows)} rows")
    for name, split in ways.items():
        splits = [split(text) for text, _ in raw]
        same = [set(a.spans) == set(spans) for a, (_, spans) in zip(splits, raw, strict=True)]
        f1 = _f1(gold, _found(model, splits))
        print(f"{name}: entity F1 {f1:.4f}, rows with the same words {np.mean(same):.3f}")


def known(model: Model, own: Path, foreign: Sequence[Path]) -> None:
    """Print how well the model distinguishes foreign texts from its own."""
    limit = threshold_of(model.version.known, 0.97)
    assert limit is not None, "the model has no threshold"
    mine, rng = _texts(own), random.Random(7)
    similar, score, energy = _scores(model, mine)
    short = model.similarities([sentence(text, rng) for text in mine])
    alike = np.quantile(np.concatenate([similar, short]), 0.03)
    print(f"own: {len(mine)} texts, {np.mean(similar < limit):.3f} refused")
    print(f"sentences: {np.mean(short < limit):.3f} refused")
    for path in foreign:
        theirs = _scores(model, _texts(path))
        of = [f"{_auroc(a, b):.3f}" for a, b in zip((similar, score, energy), theirs, strict=True)]
        refused = " ".join(f"{np.mean(theirs[0] < at):.3f}" for at in (limit, alike))
        print(f"{path.stem}: {refused} refused; AUROC of similarity, score, energy {' '.join(of)}")


def sentence(text: str, rng: random.Random) -> str:
    """One sentence of a text, or 6 to 14 words of one without sentences, or the text if it is no longer."""
    parts = [part for part in re.split(r"(?<=[.!?;])\s+", text) if 4 <= len(part.split()) <= 30]
    if len(parts) > 1:
        return rng.choice(parts)
    words, count = text.split(), rng.randint(6, 14)
    if len(words) <= count + 3:
        return text
    start = rng.randint(0, len(words) - count)
    return " ".join(words[start : start + count])


def _scores(model: Model, texts: Sequence[str]) -> tuple[NDArray[np.float64], ...]:
    """The similarity, the score (the largest probability) and the energy of each text."""
    logits = np.stack(model.outputs(texts)).astype(np.float64)
    top = logits.max(-1)
    rest = np.log(np.exp(logits - top[:, None]).sum(-1))
    return model.similarities(texts).astype(np.float64), np.exp(-rest), top + rest


def _auroc(own: NDArray[np.float64], foreign: NDArray[np.float64]) -> float:
    """The probability that an own text's figure is higher than a foreign one's; ties count half."""
    return float(((own[:, None] > foreign).mean() + (own[:, None] >= foreign).mean()) / 2)


def _found(model: Model, splits: Sequence[SplitText]) -> list[Entities]:
    import torch

    outputs = model.outputs([split.words for split in splits])
    tags = [model.task.answer(torch.from_numpy(output)).tags or [] for output in outputs]
    return [_entities(mine, split.spans) for mine, split in zip(tags, splits, strict=True)]


def _entities(tags: Sequence[str], spans: Sequence[Span]) -> Entities:
    groups = groups_of(to_bio(tags), joined=True)
    return {(label, spans[at[0]][0], spans[at[-1]][1]) for label, at in groups if label != "O"}


def _f1(gold: Sequence[Entities], found: Sequence[Entities]) -> float:
    both = sum(len(a & b) for a, b in zip(gold, found, strict=True))
    return 2 * both / max(1, sum(map(len, gold)) + sum(map(len, found)))


def _rows(path: Path) -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _texts(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(islice(dict.fromkeys(json.loads(line)["text"] for line in lines), ROWS))


if __name__ == "__main__":
    what, data, name, first, *others = sys.argv[1:]
    if what == "words":
        words(Model(Path(data), name), Path(first))
    else:
        known(Model(Path(data), name), Path(first), list(map(Path, others)))
