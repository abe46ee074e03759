"""Rows in two forms of text: fastText's lines, and Rasa's training data for intents, in YAML or Markdown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from hmi.errors import InvalidData
from hmi.training.data.records import Fits, TableRecord
from hmi.training.data.text_files import TextFile
from hmi.training.data.tools.export_rows import answer_field

MARK = "__label__"
COMMENT = "__comment__"
"""doccano writes an annotator's remarks behind the text, each with this mark."""
_QUOTED = re.compile(rf'"{MARK}.*"\s*$')
"""A line as doccano writes texts with commas and quotes: a cell of CSV."""
LARGEST_CELL = 1 << 20
"""Characters of a line in double quotes: more than a row may have."""
UNMARKED = f"without a label ({MARK})"
LEAST_MARKED = 0.8
"""Lines are fastText's if at least this share of them begins or ends with a label."""
_ENTITY = re.compile(r"\[([^\]\n]+)\](?:\([^)\n]*\)|\{[^}\n]*\})")
"""An entity within an example: [Rome](city), or [Rome]{"entity": "city"}."""
_NLU = re.compile(r"nlu:\s*(#.*)?$")
_INTENT = re.compile(r"\s*-\s*intent:\s*\S")
_HEADING = re.compile(r"##[ \t]*(\w+):[ \t]*(.+?)[ \t\r]*$", re.MULTILINE)
"""A heading of Rasa's Markdown, such as ## intent:greet."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlProblem(ValueError):
    """Raised for text that is not YAML. `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def marked_table(
    file: TextFile, head: Sequence[tuple[int, str]], fits: Fits, most: int
) -> tuple[str, Iterator[TableRecord]] | None:
    """The form and the records of a file in one of these forms; None if it is in none. head: its first lines,
    numbered, without blank ones. most: characters of a file of Rasa. Raises InvalidData, TooLarge."""
    lines = [line for _, line in head]
    if is_fasttext(lines):
        quoted = is_quoted(lines)
        rows = [line for _, line in _cells(head)] if quoted else lines
        several = any(len(labels_of_fasttext(line)) > 1 for line in rows)
        form = "fastText, labels marked by __label__" + ", in double quotes" * quoted
        return form, _fasttext(file, answer_field(["text"], fits, several=several), quoted=quoted)
    return ("Rasa's training data, entities' marks dropped", _rasa(file, most)) if is_rasa(lines) else None


def _fasttext(file: TextFile, field: str, *, quoted: bool) -> Iterator[TableRecord]:
    lines = enumerate(file.lines(), 1)
    for number, line in _cells(lines) if quoted else lines:
        if line.strip():
            # As fastText itself does.
            out = "" if labels_of_fasttext(line) else UNMARKED
            yield TableRecord(number, fasttext_row(line, field), left_out=out)


def _cells(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of which some are cells of CSV, without their quotes. A cell may have several lines, and has
    the number of the first. One that grows too large was never closed."""
    held: list[str] = []
    first = quotes = characters = 0
    for number, line in lines:
        first = first if held else number
        held.append(line)
        quotes += line.count('"')
        characters += len(line)
        if not held[0].startswith('"') or quotes % 2 == 0 or characters > LARGEST_CELL:
            yield first, _unquoted(" ".join(held))
            held, quotes, characters = [], 0, 0
    if held:
        yield first, _unquoted(" ".join(held))


def _unquoted(cell: str) -> str:
    inner = cell.strip()
    if not (len(inner) > 1 and inner[0] == inner[-1] == '"'):
        return cell
    return inner[1:-1].replace('""', '"')


def _rasa(file: TextFile, most: int) -> Iterator[TableRecord]:
    try:
        for line, values in rasa_rows(file.all(most), whole=file.whole):
            yield TableRecord(line, values)
    except YamlProblem as error:
        raise InvalidData(
            f"line {error.line} of {file.name} is not YAML ({error}): mend it",
            field=file.field,
            line=error.line,
        ) from error


def is_quoted(lines: Sequence[str]) -> bool:
    """Whether some of these lines are fastText's in double quotes."""
    return any(map(_QUOTED.match, lines))


def is_fasttext(lines: Sequence[str]) -> bool:
    """Whether these lines, none of them blank, are fastText's."""
    if is_quoted(lines):
        lines = [line for _, line in _cells(enumerate(lines, 1)) if line.strip()]
    ends = ((words[0], words[-1]) for words in map(str.split, lines))
    marked = sum(first.startswith(MARK) or last.startswith(MARK) for first, last in ends)
    return bool(lines) and marked >= LEAST_MARKED * len(lines)


def labels_of_fasttext(line: str) -> list[str]:
    """The labels of a line, without their mark."""
    return [word.removeprefix(MARK) for word in line.split() if word.startswith(MARK)]


def fasttext_row(line: str, field: str) -> dict[str, Any]:
    """The row of a line. field: `label`, for one label, or `labels`."""
    labels = labels_of_fasttext(line)
    words = itertools.takewhile(lambda word: not word.startswith(COMMENT), line.split())
    text = " ".join(word for word in words if not word.startswith(MARK))
    one = labels[0] if len(labels) == 1 else labels or None
    return {"text": text, field: labels if field == "labels" else one}


def is_rasa(lines: Sequence[str]) -> bool:
    """Whether these lines, the first of a file, are Rasa's training data for intents."""
    if any(map(_NLU.match, lines)) and any(map(_INTENT.match, lines)):
        return True
    first = _HEADING.match(lines[0]) if lines else None
    return first is not None and first[1] in ("intent", "synonym", "lookup", "regex")


def rasa_rows(text: str, *, whole: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each example of an intent as (line, row). Entities' marks are dropped, their words stay.

    whole: False if the text ends somewhere within the file; its last item is then ignored. Raises
    YamlProblem.
    """
    if _HEADING.match(text.lstrip()):
        yield from _of_markdown(text)
        return
    if not whole:
        ends = [
            found.start()
            for found in re.finditer(r"^ *- *(?:intent|synonym|regex|lookup):", text, re.MULTILINE)
        ]
        text = text[: ends[-1]] if ends else text
    try:
        root = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise YamlProblem(
            mark.line + 1 if mark else 1, str(getattr(error, "problem", "")) or "unreadable"
        ) from error
    for item in _items(_member(root, "nlu")):
        intent, examples = _member(item, "intent"), _member(item, "examples")
        if isinstance(intent, yaml.ScalarNode):
            for line, example in _examples(examples):
                yield line, {"text": _ENTITY.sub(r"\1", example), "label": intent.value}


def _of_markdown(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    blocks: list[tuple[str, list[tuple[int, str]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        heading = _HEADING.match(line)
        if heading:
            blocks.append((heading[2] if heading[1] == "intent" else "", []))
        elif blocks:
            blocks[-1][1].append((number, line))
    for intent, lines in blocks:
        for number, example in _bulleted(lines, ("- ", "* ")) if intent else ():
            yield number, {"text": _ENTITY.sub(r"\1", example), "label": intent}


def _examples(node: Any) -> Iterator[tuple[int, str]]:
    """The examples of an item: a block of lines that begin with a hyphen, or a list of objects with a
    `text`."""
    if isinstance(node, yaml.ScalarNode):
        first = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        lines = [*enumerate(node.value.splitlines(), first)]
        if any(line.lstrip().startswith("-") for _, line in lines):
            yield from _bulleted(lines, ("-",))
        else:
            yield from ((number, line.strip()) for number, line in lines if line.strip())
    for item in _items(node):
        text = _member(item, "text") if isinstance(item, yaml.MappingNode) else item
        if isinstance(text, yaml.ScalarNode):
            yield text.start_mark.line + 1, text.value.strip().removeprefix("-").strip()


def _bulleted(lines: Sequence[tuple[int, str]], marks: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """The examples of lines that begin with a mark each. A line without one goes on with the one above."""
    held: list[tuple[int, str]] = []
    for number, line in lines:
        said = line.strip()
        if said.startswith(marks):
            held.append((number, said[1:].strip()))
        elif said and held:
            held[-1] = (held[-1][0], f"{held[-1][1]} {said}".strip())
    yield from ((number, example) for number, example in held if example)


def _items(node: Any) -> list[Any]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _member(node: Any, name: str) -> Any:
    """The value of a mapping's key, or None."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if getattr(key, "value", None) == name), None)
