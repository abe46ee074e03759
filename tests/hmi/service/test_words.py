"""Every error of pydantic that `hmi.words` says in other words, provoked for real.

pydantic may rename its errors or change the messages of its JSON parser in any release. Users would then read
pydantic's own words. The failing test says which error of which version changed.
"""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import version
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hmi import words
from hmi.core import DOMAIN_PATTERN, ID_PATTERN, MODEL_PATTERN, NAME_PATTERN, ROLE_PATTERN


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    epochs: int


def refuse(value: object) -> object:
    raise ValueError("the words of a validator")


Finite = Annotated[float, Field(allow_inf_nan=False)]
TYPES: dict[str, tuple[Any, Any, str]] = {
    "string_type": (str, 1, "is the number 1, and must be a text"),
    "int_type": (int, [], "is a list, and must be a whole number"),
    "int_from_float": (int, 1.5, "is the number 1.5, and must be a whole number"),
    "int_parsing": (int, "x", "is the text 'x', and must be a whole number"),
    "int_parsing_size": (Literal[1], 10**30, "is 1000000000000000000000000000000, which is too large"),
    "float_type": (float, [], "is a list, and must be a number"),
    "float_parsing": (float, "x", "is the text 'x', and must be a number"),
    "finite_number": (Finite, float("inf"), "is the number Infinity, and must be a finite number"),
    "bool_type": (bool, [], "is a list, and must be true or false"),
    "bool_parsing": (bool, "maybe", "is the text 'maybe', and must be true or false"),
    "list_type": (list[int], {}, "is an object, and must be a list"),
    "tuple_type": (tuple[int, ...], {}, "is an object, and must be a list"),
    "datetime_type": (AwareDatetime, [], "is a list, and must be a time such as 2027-01-31T12:00:00Z"),
    "datetime_parsing": (
        AwareDatetime,
        b'"25 o\'clock"',
        'is the text "25 o\'clock", and must be a time such as 2027-01-31T12:00:00Z',
    ),
    "datetime_from_date_parsing": (
        AwareDatetime,
        "soon",
        "is the text 'soon', and must be a time such as 2027-01-31T12:00:00Z",
    ),
    "timezone_aware": (
        AwareDatetime,
        "2027-01-31T12:00:00",
        "is the text '2027-01-31T12:00:00', and must be a time with its zone, such as 2027-01-31T12:00:00Z",
    ),
    "dict_type": (dict[str, int], [], "is a list, and must be an object"),
    "model_type": (Strict, [], "is a list, and must be an object with epochs"),
    "model_attributes_type": (Strict, 1, "is the number 1, and must be an object with epochs"),
    "greater_than": (Annotated[int, Field(gt=3)], 3, "is 3, and must be more than 3"),
    "greater_than_equal": (Annotated[int, Field(ge=3)], 2, "is 2, and must be at least 3"),
    "less_than": (Annotated[int, Field(lt=3)], 3, "is 3, and must be less than 3"),
    "less_than_equal": (Annotated[int, Field(le=3)], 4, "is 4, and must be at most 3"),
    "extra_forbidden": (Strict, {"epochs": 1, "epoch": 1}, "is not a field here: did you mean 'epochs'?"),
    "missing": (Strict, {}, "is missing: add it"),
    "literal_error": (
        Literal["fast", "full"],
        "fasst",
        "is 'fasst', which is unknown: did you mean 'fast'? It must be 'fast' or 'full'",
    ),
    "string_too_short": (Annotated[str, Field(min_length=1)], "", "is empty: give at least one character"),
    "too_short": (Annotated[list[int], Field(min_length=1)], [], "is empty: give at least one"),
    "string_too_long": (Annotated[str, Field(max_length=1)], "ab", "is longer than 1 characters: shorten it"),
    "too_long": (Annotated[list[int], Field(max_length=1)], [1, 2], "is longer than 1 items: shorten it"),
    "string_unicode": (str, b"\xff", "is not text that can be written as UTF-8"),
    "string_pattern_mismatch": (Annotated[str, Field(pattern="^a$")], "b", "'b' is not of the form ^a$"),
    "value_error": (Annotated[str, AfterValidator(refuse)], "a", "the words of a validator"),
}
"""For each type of error: what is expected, what is given (JSON if it is bytes), what `hmi.words` says."""
RULES = {
    NAME_PATTERN: "is not a name: use ",
    ROLE_PATTERN: "is not a role: use ",
    MODEL_PATTERN: "is not a model's name: it is tenant.model, ",
    words.LEVEL_PATTERN: "is neither tenant.model nor tenant.model@version, ",
    DOMAIN_PATTERN: "is not a domain's name: it is root/branch, ",
    ID_PATTERN: "is not an id: copy it from an answer of this server",
}
NOT_JSON = {
    "unexpected end of hex escape": b'"\\ud800"',
    "lone leading surrogate": b'"\\ud800\\u0041"',
    "EOF while parsing": b'{"a"',
    "expected value": b'{"a": }',
    "expected ident": b"nulx",
    "expected `": b'{"a" 1}',
    "key must be a string": b"{a: 1}",
    "trailing comma": b"[1,]",
    "trailing characters": b"1 2",
    "control character": b'"\n"',
    "recursion limit": b"[" * 300,
    "invalid unicode": b'"\xff"',
    "invalid escape": b'"\\q"',
    "invalid number": b"1.x",
    "number out of range": b"9" * 5000,
}
"""For each beginning of a message of the JSON parser: a text that it says this of."""


def problem_of(kind: Any, given: Any) -> Any:
    """pydantic's first error about a value, or about JSON if `given` is bytes and not to be a text."""
    adapter, json = TypeAdapter(kind), isinstance(given, bytes) and kind is not str
    check = adapter.validate_json if json else adapter.validate_python
    options = {"strict": True} if json else {"from_attributes": given == 1 and kind is Strict}
    with pytest.raises(ValidationError) as caught:
        check(given, **options)
    return caught.value.errors()[0]


@pytest.mark.parametrize("name", TYPES)
def test_an_error_of_pydantic_is_said_in_our_words(name: str) -> None:
    kind, given, said = TYPES[name]
    problem = problem_of(kind, given)
    what = (
        f"pydantic {version('pydantic')} reports {given!r} as {problem['type']}, not as {name}: hmi/words.py"
    )
    assert problem["type"] == name, f"{what} would show users pydantic's own words"
    assert words.explain(problem, kind) == said


@pytest.mark.parametrize("pattern", words._RULES)
def test_a_pattern_is_said_in_our_words(pattern: str) -> None:
    problem = problem_of(Annotated[str, Field(pattern=f"^{pattern}$")], "No Name!")
    assert words.explain(problem, str).startswith(f"'No Name!' {RULES[pattern]}"), problem


@pytest.mark.parametrize(("begin", "cause", "cure"), words._NOT_JSON, ids=[row[0] for row in words._NOT_JSON])
def test_a_message_of_the_json_parser_is_said_in_our_words(begin: str, cause: str, cure: str) -> None:
    problem = problem_of(Any, NOT_JSON[begin])
    message = problem["ctx"]["error"]
    what = f"pydantic-core {version('pydantic-core')} says {message!r}, which does not begin with {begin!r}"
    assert message.startswith(begin), f"{what}: hmi/words.py would show users these words"
    told = words.not_json(problem)
    assert told.startswith(f"{cause} (line ")
    assert told.endswith(f": {cure}")


def test_every_type_that_words_handles_is_provoked() -> None:
    (explain,) = (
        node
        for node in ast.parse(inspect.getsource(words)).body
        if isinstance(node, ast.FunctionDef) and node.name == "explain"
    )
    compared = [node for node in ast.walk(explain) if isinstance(node, ast.Compare)]
    literals = {
        str(each.value)
        for compare in compared
        if isinstance(compare.left, ast.Name) and compare.left.id == "kind"
        for each in ast.walk(compare)
        if isinstance(each, ast.Constant)
    }
    assert len(literals) > 8
    assert TYPES.keys() - {"value_error"} == literals | words._WANTED.keys() | words._BOUNDS.keys()
