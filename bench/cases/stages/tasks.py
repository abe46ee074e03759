"""The rows of the tasks: for training, for ramps, for profiles and for streams; and drifted texts."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from bench.cases.stages.plan import StagesPlan
from hmi.errors import InvalidInput
from hmi.training.data.rows import Row, read_labelled_rows

SEED = 20_26
SWAPPED = 0.3
"""The fraction of a drifted text's words in which two neighbouring letters change places."""
WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True)
class StageRows:
    """The rows of one task, in a fixed order. No row is in two parts."""

    name: str
    labelled: list[Row]
    """The rows that its models are trained on."""
    unlabelled: list[Row]
    """Further texts that its ramps are trained on. Their labels are not used."""
    profiled: list[Row]
    """The rows that its cascades are profiled on."""
    stream: list[Row]
    """The rows whose texts are asked."""

    @property
    def asked(self) -> list[str]:
        """The texts of the stream."""
        return [str(row.text) for row in self.stream]


def load(name: str, plan: StagesPlan) -> StageRows:
    """Read a set and divide its rows. The stream has the test rows too, which no training sees.

    Raises InvalidInput if the set is missing or has too few rows, InvalidData if it is no classification.
    """
    folder = plan.sets / name
    if not (folder / "train.jsonl.gz").is_file():
        raise InvalidInput(
            f"{folder} holds no train.jsonl.gz: name the folder of the labelled sets", field="sets"
        )
    train, rest = _rows(folder, "train"), [*_rows(folder, "dev"), *_rows(folder, "test")]
    draw = random.Random(SEED)
    draw.shuffle(train)
    a, b = plan.labelled, plan.labelled + plan.unlabelled
    c = b + plan.profiled
    stream = [*train[c:], *rest]
    draw.shuffle(stream)
    if len(train) < c or len(stream) < plan.texts:
        raise InvalidInput(
            f"{name} has {len(train)} training rows and {len(stream)} are left to ask: use fewer --texts, or "
            "another --task",
            field="texts",
        )
    known = {row.label for row in train[:a]}
    stream = [row for row in stream if row.label in known]
    return StageRows(name, train[:a], train[a:b], train[b:c], stream[: plan.texts])


def _rows(folder: Path, part: str) -> list[Row]:
    path = folder / f"{part}.jsonl.gz"
    if not path.is_file():
        return []
    rows = read_labelled_rows(path, "classification", field=path.name)
    return list({str(row.text): row for row in rows}.values())


def drifted(text: str, seed: int) -> str:
    """Misspell a text: in some of its words two neighbouring letters change places."""
    draw = random.Random(seed)

    def spelt(word: re.Match[str]) -> str:
        letters = word[0]
        if draw.random() >= SWAPPED:
            return letters
        at = draw.randrange(len(letters) - 1)
        return letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :]

    return WORD.sub(spelt, text)
