"""Why a table does not give the rows of a task, where its columns alone do not say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hmi.core import Task
from hmi.training.data.meaning.columns import EXAMPLES, LISTS, NEEDED, listed, second_text
from hmi.training.data.records import TableRecord, TextTable
from hmi.training.data.tables import kind_of
from hmi.training.data.tools.span_forms import is_spans

_SPACY = "write JSON, one document a line: json.dumps(doc.to_json())"
_PANDAS = "give one object a row (pandas: orient='records', lines=True)"
_NOT_READ = (
    ({"doc_annotation", "token_annotation"}, f"it holds spaCy's Example.to_dict(): {_SPACY}"),
    ({"id", "paragraphs"}, f"it is spaCy's training format of version 2: {_SPACY}"),
    ({"columns", "data"}, f"it is a table by pandas' orient='split': {_PANDAS}"),
)
"""Columns of forms that are not read, and which form to write."""


def example(task: Task, paired: bool | None) -> str:
    """An example row; without its answer unless `paired` is None."""
    if paired is None:
        return EXAMPLES[task]
    return (
        '{"tokens": ["…"]}'
        if task == "tagging"
        else '{"text": "…", "text_pair": "…"}'
        if paired
        else '{"text": "…"}'
    )


def not_read(columns: Sequence[str], head: Sequence[TableRecord]) -> str:
    """What to do with a table of a form that is known, but not read; "" for others. head: its first
    records."""
    groups = next((value for record in head for value in record.values.values() if _are_groups(value)), None)
    if groups is not None:
        return (
            f"its spans are in several groups, {listed(groups)}, and a word has one tag: write one of them "
            "(spaCy: doc.set_ents(doc.spans[NAME]))"
        )
    return next((said for names, said in _NOT_READ if names <= set(columns) <= names | {"index"}), "")


def _are_groups(value: Any) -> bool:
    """Whether a value is an object with several lists of spans, as spaCy's `Doc.to_json` writes them."""
    return isinstance(value, dict) and len(value) > 1 and any(map(is_spans, value.values()))


def choice_note(choices: Sequence[str], names: Mapping[str, str]) -> str:
    """A remark if a tool's export has several columns that each may be the label, and one was read."""
    read = next((given for given, ours in names.items() if ours in ("label", "labels")), None)
    others = listed(name for name in choices if name != read)
    if read not in choices or not others:
        return ""
    return (
        f"the file has several choices: `{read}` is read, {others} not. Name the one to read "
        "(--label-column, over HTTP options.label_column)"
    )


def several_choices(choices: Sequence[str]) -> str:
    """What to do with a tool's export of several columns that each may be the label, if none was read."""
    return (
        f"has several choices, {listed(choices)}: name the one to read (--label-column NAME, over HTTP "
        "options.label_column)"
    )


def number_note(labels: Collection[str]) -> str:
    """A remark if all labels are the numbers of classes, as Hugging Face's `datasets` writes them."""
    found = sorted(int(label) for label in labels if label.isascii() and label.isdecimal())
    if len(found) < 2 or len(found) != len(set(labels)) or found[0] not in (0, 1):
        return ""
    if found != [*range(found[0], found[0] + len(found))]:
        return ""
    given = "A,B,…" if found[0] == 0 else "1=A,2=B,…"
    return (
        f"the labels are numbers, from {found[0]} to {found[-1]}, and so will be the answers: if they have "
        f"names, give these (--labels {given}; over HTTP options.labels)"
    )


def headless(table: TextTable, problem: str, task: Task, *, answers: bool) -> str:
    """A further hint if the first line of a CSV file does not look like a header."""
    names = ",".join(NEEDED[task])
    if not problem or not table.form.startswith("CSV") or any(name in LISTS for name in NEEDED[task]):
        return ""
    if not answers:
        return f". If this is plain text, give JSON, one object a line: {example(task, task == 'pair')}"
    if len(table.columns) == 1:
        return f". If this is plain text, it has no labels: rows are lines of cells below the header {names}"
    if "without a header" in table.form:
        return ""
    return (
        f". If the first line is a row already, write the header {names} above it, or give --no-header "
        f"and name "
        "columns by their numbers"
    )


def wrong_form(
    table: TextTable, names: Mapping[str, str], head: list[TableRecord], task: Task, *, paired: bool | None
) -> str:
    """Why rows with these columns would be misread; "" if they would not."""
    pair = second_text(table.columns)
    single = task in ("classification", "multilabel") and not paired
    if pair and single and any(str(record.values.get(pair[1]) or "").strip() for record in head):
        cure = "join the two texts" if task == "multilabel" else 'give --task pair (over HTTP "task": "pair")'
        return (
            f"it has two texts a row, {listed(pair)}, and the task {task} reads one: {cure}, or remove "
            f"the column `{pair[1]}`"
        )
    if table.form.startswith("CSV") and not all(record.problem for record in head):
        read = {given for record in head for given in names if isinstance(record.values.get(given), list)}
        lists = [given for given, ours in names.items() if ours in LISTS and given not in read]
        if lists:
            also = (
                ", or CoNLL (a token and its tag a line, a blank line between texts)"
                if task == "tagging"
                else ""
            )
            cure = f"give JSON, one object a line: {EXAMPLES[task]}{also}"
            return f"a CSV cell cannot hold a list, and {listed(lists)} must be lists: {cure}"
    return _by_column(names, head)


def _by_column(names: Mapping[str, str], head: list[TableRecord]) -> str:
    """Why the first record is no row, but holds a whole column in each field; "" if it does not."""
    columns = {ours: given for given, ours in names.items()}
    values = head[0].values if head else {}
    text, words = values.get(columns.get("text", "")), values.get(columns.get("tokens", ""))
    if isinstance(text, list | dict):
        return f"`{columns['text']}` is {kind_of(text)} of all texts: {_PANDAS}"
    if isinstance(words, dict) or (isinstance(words, list) and words and isinstance(words[0], list)):
        return f"`{columns['tokens']}` is {kind_of(words)} of all rows: {_PANDAS}"
    return ""
