"""What an annotator decided about each row, as Prodigy writes it: accept, reject or ignore.

An accepted row counts as it is. An ignored row is left out. A rejected row says only which label is wrong: of
two labels the other one is right, a single label is contrasted with its absence, and of more labels nothing
is known, so the row is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from hmi.core import Task
from hmi.sizes import counted

FIELD = "answer"
"""The field of a record that holds the decision."""
WORDS = ("accept", "reject", "ignore")
NOT = "not "
"""The label of the rows that are rejected in a file with a single label begins so."""


class Decisions:
    """The decisions of one file, and how many there are of each."""

    def __init__(self, head: Iterable[Mapping[str, Any]], task: Task, *, given: bool = True) -> None:
        """head: the file's first records. given: False if `answer` is a column with another meaning."""
        said = [values[FIELD] for values in head if values.get(FIELD) not in (None, "")] if given else []
        self.given = bool(said) and 2 * sum(word in WORDS for word in said) >= len(said)
        """Whether the file has decisions: at least half of the values are such words."""
        self._none_yet = given and not said
        """Whether no record so far has an `answer`. The first one then tells whether these are decisions."""
        self._one_label = task in ("classification", "pair")
        self._counts: Counter[str] = Counter()

    def read(self, values: Mapping[str, Any]) -> Literal["row", "rejected", "out"]:
        """Count the decision on a record: it is a row, a row whose label is wrong, or no row. Raises
        ValueError for a decision that is none."""
        said = values.get(FIELD)
        if self._none_yet and said not in (None, ""):
            self._none_yet, self.given = False, said in WORDS
        if not (self.given or self._none_yet):
            return "row"
        if said in (None, ""):
            said = "accept"
        if said not in WORDS:
            raise ValueError(f"`{FIELD}` is {str(said)[:40]!r}, not accept, reject or ignore")
        self._counts[said] += 1
        if said == "accept":
            return "row"
        # With a choice of options, a rejected record is a bad question, whichever option is chosen.
        return "rejected" if said == "reject" and self._one_label and "options" not in values else "out"

    def notes(self, settled: Mapping[int, str | None]) -> list[str]:
        """A remark that counts each decision, unless all were accept. settled: what `labels_of_rejected`
        returned."""
        if not self._counts["reject"] + self._counts["ignore"]:
            return []
        turned = [label for label in settled.values() if label is not None]
        rejected, ignored = self._counts["reject"], self._counts["ignore"]
        if not rejected:
            read = ""
        elif not turned:
            read = "; the rejected rows are left out, since a rejection does not tell the right label"
        elif len(set(turned)) == 1 and turned[0].startswith(NOT):
            read = f"; the rejected rows get the label `{turned[0]}`"
        else:
            read = "; the rejected rows get the other of the two labels"
        left = "; the ignored rows are left out" if ignored else ""
        counts = f"accepted {counted(self._counts['accept'], 'row')}, rejected {rejected}, ignored {ignored}"
        return [f"the annotator {counts} (`{FIELD}`){read}{left}"]


def labels_of_rejected(labels: Sequence[Any], rejected: Collection[int]) -> dict[int, str | None]:
    """The label of each rejected row, given by its index; None: leave the row out.

    labels: of all rows; those of the rejected ones are wrong.
    """
    names = sorted({label for label in labels if isinstance(label, str)})
    if len(names) == 2:
        other = dict(zip(names, reversed(names), strict=True))
        return {i: other[labels[i]] for i in rejected}
    return {i: f"{NOT}{labels[i]}" if len(names) == 1 else None for i in rejected}
