"""A reader of the part of PromQL that the dashboards and alerts use: it finds metrics and labels, and refuses
what is not well-formed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"\s*(?:(?P<string>\"[^\"]*\")|(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<op>=~|!~|!=|==|>=|<=|[-+*/><=(){},]))"
)
FUNCTIONS = {"histogram_quantile", "increase", "rate"}
AGGREGATES = {"max", "sum", "topk"}
COMPARED = {"==", "!=", ">", "<", ">=", "<="}
OPERATORS = {"+", "-", "*", "/", *COMPARED}


@dataclass
class Expression:
    """The metrics of an expression, each with the labels that it is matched by, and the labels in groups."""

    metrics: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


class Reader:
    """Reads one expression. Raises ValueError where it is not well-formed."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            token = TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise ValueError(f"unreadable: {text[at : at + 20]!r}")
            self.tokens.append((token.lastgroup, token[token.lastgroup]))
            at = token.end()
        self.tokens.append(("end", ""))
        self.at, self.found = 0, Expression()

    def read(self) -> Expression:
        self._expression()
        self._take("end")
        return self.found

    def _next(self) -> str:
        return self.tokens[self.at][1]

    def _take(self, kind: str, text: str | None = None) -> str:
        found = self.tokens[self.at]
        if found[0] != kind or text not in (None, found[1]):
            raise ValueError(f"{found[1]!r} stands where {text or kind!r} is needed")
        self.at += 1
        return found[1]

    def _expression(self) -> None:
        self._operand()
        while self._next() in OPERATORS:
            self._take("op")
            if self._next() in ("ignoring", "on"):
                self._take("name")
                self._labels()
                if self._next() == "group_left":
                    self._take("name")
            self._operand()

    def _operand(self) -> None:
        if self.tokens[self.at][0] == "number":
            self._take("number")
        elif self._next() == "(":
            self._take("op")
            self._expression()
            self._take("op", ")")
        elif self._next() in AGGREGATES:
            self._take("name")
            if self._next() == "by":
                self._take("name")
                self._labels()
            self._arguments()
        elif self._next() in FUNCTIONS:
            name = self._take("name")
            before = self.at
            self._arguments()
            ranged = any(kind == "range" for kind, _ in self.tokens[before : self.at])
            if name in ("rate", "increase") and not ranged:
                raise ValueError(f"{name} needs a range")
        else:
            self._selector()

    def _arguments(self) -> None:
        self._take("op", "(")
        self._expression()
        while self._next() == ",":
            self._take("op")
            self._expression()
        self._take("op", ")")

    def _labels(self) -> None:
        self._take("op", "(")
        while True:
            self.found.grouped.add(self._take("name"))
            if self._next() != ",":
                break
            self._take("op")
        self._take("op", ")")

    def _selector(self) -> None:
        metric, labels = self._take("name"), dict[str, str]()
        if self._next() == "{":
            self._take("op")
            while self._next() != "}":
                name = self._take("name")
                if self._take("op") not in ("=", "=~", "!=", "!~"):
                    raise ValueError(f"{name} is not compared")
                labels[name] = self._take("string")[1:-1]
                if self._next() == ",":
                    self._take("op")
            self._take("op", "}")
        if self.tokens[self.at][0] == "range":
            self._take("range")
        self.found.metrics.append((metric, labels))
