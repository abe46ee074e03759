"""Tables and JSON on stdout; notes and progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hmi.sizes import size

__all__ = ["fits", "notes", "print_done", "print_fields", "print_json", "print_table", "size", "table_of"]

notes = Console(stderr=True, highlight=False)
"""The console on stderr, for all output that is not the answer itself."""
PLAIN_WIDTH = 80
"""Columns of an output that is not a terminal, for `fits`."""


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print a value as JSON; `compact`: on one line."""
    click.echo(json.dumps(value, indent=None if compact else 2, ensure_ascii=False))


def print_done(value: Any, text: str, as_json: bool) -> None:
    """Report what a command did: `value` as JSON on stdout, or `text` on stderr."""
    print_json(value) if as_json else notes.print(text, markup=False, soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], empty: str) -> None:
    """Print rows as a table, or `empty` if there are none.

    `columns` are headings by field. Without a terminal the table may be 200 columns wide.
    """
    if not rows:
        notes.print(empty)
        return
    _stdout_console().print(table_of(rows, columns))


def fits(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> bool:
    """Return whether a table fits the terminal, or 80 columns without one."""
    width = sum(
        max(len(head), *(len(_cell(row.get(field))) for row in rows)) + 2 for field, head in columns.items()
    )
    console = Console()
    return width - 2 <= (console.width if console.is_terminal else PLAIN_WIDTH)


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Return rows as a rich table, for output that is redrawn."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(field)) for field in columns))
    return table


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a line for each field."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, _cell(value))
    _stdout_console().print(table)


def _stdout_console() -> Console:
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(v) for v in value) or "-"
    return str(value)
