"""Turns the tensors and parameters of a request into an ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from hmi.api.protocols.asks import Ask, Input
from hmi.api.protocols.oip.about import outputs_of
from hmi.api.protocols.oip.schemas import Options
from hmi.api.protocols.oip.tensors import BytesTensor
from hmi.core import ModelId, ModelRecord
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.sizes import counted

TEXT, PAIR, TOKENS = "TEXT", "TEXT_PAIR", "TOKENS"
"""The names of inputs."""
MAX_WORDS = 10_000
"""Most words in one row of TOKENS, as in HMI's own calls."""


@dataclass(frozen=True)
class InputRows:
    """The inputs of a request, one for each row of its tensors."""

    texts: Sequence[str | list[str]]
    """Texts, or the words of each text."""
    pairs: Sequence[str] | None = None
    """The second texts, or None if the rows are no pairs."""

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Input]:
        for i, text in enumerate(self.texts):
            if isinstance(text, list):
                yield Input(text, f"{TOKENS}[{i}]", (f"{TOKENS}[{i}]",))
            elif self.pairs is None:
                yield Input(text, f"{TEXT}[{i}]", (f"{TEXT}[{i}]",))
            else:
                yield Input((text, self.pairs[i]), f"{TEXT}[{i}]", (f"{TEXT}[{i}]", f"{PAIR}[{i}]"))


@dataclass(frozen=True)
class Asked:
    """A request to infer, from HTTP or gRPC."""

    rows: InputRows
    options: Options
    outputs: tuple[str, ...]
    """The names of the outputs that the caller wants; all outputs if it is empty."""
    id: str
    """The caller's name of the request; "" if it has none."""


def rows_of(tensors: Sequence[BytesTensor], hold: Callable[[int], None]) -> InputRows:
    """The rows of a request's input tensors.

    hold: `BodyReader.hold`, for words that JSON in TOKENS holds. Raises InvalidInput that names the tensor.
    """
    given = {tensor.name: tensor for tensor in tensors}
    for tensor in tensors:
        if tensor.name not in (TEXT, PAIR, TOKENS):
            raise InvalidInput(
                f"input {tensor.name!r} is unknown: send {TEXT}, {TEXT} with {PAIR}, or {TOKENS}",
                field=tensor.name,
            )
    if len(given) < len(tensors):
        raise InvalidInput("an input is given twice: give each once", field="inputs")
    if TOKENS in given:
        if len(given) > 1:
            raise InvalidInput(f"{TOKENS} stands alone: leave the other inputs out", field=TOKENS)
        return InputRows(_words_of(given[TOKENS], hold))
    if TEXT not in given:
        raise InvalidInput(f"{TEXT} is missing: send it beside {PAIR}", field=TEXT)
    texts = _column(given[TEXT])
    if PAIR not in given:
        return InputRows(texts)
    pairs = _column(given[PAIR])
    if len(pairs) != len(texts):
        raise InvalidInput(
            f"{PAIR} has {counted(len(pairs), 'row')} and {TEXT} has {len(texts)}: send as many of both",
            field=PAIR,
        )
    return InputRows(texts, pairs)


def ask_of(asked: Asked, model: ModelId, record: ModelRecord, version: str) -> Ask:
    """The ask of a request.

    record: the model's. version: the version that the request names; "" if it names none. Raises NotFound
    and Conflict (a version that does not answer), and InvalidInput for an output that the task lacks.
    """
    check_version(record, version)
    known = outputs_of(record.live)
    for name in asked.outputs:
        if name not in known:
            raise InvalidInput(
                f"output {name!r} is unknown: {model} is of the task {record.live.task} and has "
                f"{', '.join(known)}",
                field="outputs",
            )
    options, wanted = asked.options, asked.outputs or known
    if options.sequence_id not in (None, 0, ""):
        raise InvalidInput("sequences are not supported: leave sequence_id out", field="sequence_id")
    return Ask(
        model=model,
        inputs=asked.rows,
        exact=options.exact,
        scores="SCORES" in wanted or "CLASSES" in wanted,
        calibrated=options.calibrated,
        aggregation=options.aggregation,
        early=options.early,
        deadline_ms=options.deadline,
        utility=options.utility,
        priority=options.priority,
    )


def check_version(record: ModelRecord, version: str) -> None:
    """Raise NotFound for a version that does not exist, and Conflict for one that does not answer.

    version: as the caller writes it; "" names none.
    """
    if version in ("", str(record.current)):
        return
    model = f"{record.tenant}.{record.name}"
    if version not in {str(each.version) for each in record.versions}:
        raise NotFound(
            f"{model} has no version {version[:20]!r}: leave the version out for {record.current}",
            field="version",
        )
    raise Conflict(
        f"version {version} of {model} exists, but only version {record.current} answers: leave the version "
        f"out, or let {version} answer with POST /manage/models/{model}/rollback",
        field="version",
    )


def _column(tensor: BytesTensor) -> Sequence[str]:
    """The texts of a tensor of one text a row. Raises InvalidInput."""
    if len(tensor.shape) == 2 and tensor.shape[1] != 1:
        raise InvalidInput(
            f"{tensor.name} has the shape {list(tensor.shape)}: send one text a row, [n] or [n, 1]",
            field=tensor.name,
        )
    return tensor.texts


def _words_of(tensor: BytesTensor, hold: Callable[[int], None]) -> list[list[str]]:
    """The words of each row of TOKENS. Raises InvalidInput that names the row."""
    if len(tensor.shape) == 1:
        hold(sum(1 + text.count(",") for text in tensor.texts))
        rows = [_parsed(text, f"{TOKENS}[{i}]") for i, text in enumerate(tensor.texts)]
    else:
        width = tensor.shape[1]
        cells = (tensor.texts[at : at + width] for at in range(0, len(tensor.texts), width))
        rows = [_unpadded(row) for row in cells]
    for i, row in enumerate(rows):
        if not 0 < len(row) <= MAX_WORDS:
            raise InvalidInput(
                f"{TOKENS}[{i}] has {len(row)} words: send 1 to {MAX_WORDS}", field=f"{TOKENS}[{i}]"
            )
    return rows


def _parsed(text: str, place: str) -> list[str]:
    try:
        words = from_json(text)  # unlike json's, it refuses halves of surrogate pairs, which no text may have
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidInput(
            f'{place} is not a JSON list of words: send elements such as ["where", "now"] in the shape [n], '
            "or one word an element in the shape [n, words]",
            field=place,
        )
    return words


def _unpadded(row: Sequence[str]) -> list[str]:
    """The words of a row without the empty elements at its end."""
    words = list(row)
    while words and not words[-1]:
        words.pop()
    return words
