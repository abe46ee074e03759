"""Descriptions of the settings: the texts under their fields in `Settings`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from hmi.config.settings import DEFAULTS, Settings, bounds
from hmi.config.values import is_size, variable
from hmi.sizes import size

UNITS: Final = {"bytes": "bytes", "tokens": "tokens", "s": "seconds", "ms": "milliseconds"}
"""The unit of a setting, by the last word of its name."""
ENDLESS: Final = 1 << 50
"""An upper bound from here on only stops nonsense, so it is not shown."""


@dataclass(frozen=True)
class SettingDescription:
    """The description of one setting."""

    name: str
    default: str
    unit: str
    range: str
    about: str

    @property
    def variable(self) -> str:
        return variable(self.name)

    @property
    def summary(self) -> str:
        """The first sentence of `about`."""
        return self.about.split(". ")[0].rstrip(".") + "."


@cache
def settings() -> tuple[SettingDescription, ...]:
    """Return every setting, in the order of the class."""
    about = _texts()
    found = []
    for name, default in DEFAULTS.items():
        number = isinstance(default, int | float) and not isinstance(default, bool)
        unit = _unit(name) if number else ""
        shown = _range(name, unit) if number else ""
        found.append(SettingDescription(name, amount(default, unit), unit, shown, about.get(name, "")))
    return tuple(found)


def _unit(name: str) -> str:
    """Return the unit that a setting's name ends with, such as "seconds" or "tokens a second", or ""."""
    rate = name.removesuffix("_per_s")
    word = rate.rpartition("_")[2]
    return UNITS.get(word, "") if rate == name else f"{UNITS.get(word, word)} a second"


def amount(value: Any, unit: str) -> str:
    """Return a value for people: whole KiB and MiB with their unit, large numbers with commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if unit == "bytes" and value and value % 1024 == 0:
        return size(value).replace(".0 ", " ")
    return f"{value:,}" if isinstance(value, int) and value >= 1_000_000 else str(value)


def commented() -> str:
    """Return a TOML file with every setting at its default, commented out."""
    return HEAD + "".join(_entry(setting) for setting in settings())


HEAD: Final = """\
# Settings of HMI. Remove the # before a setting to change it; 'hmi config check FILE' checks the file.
# The server reads it with 'hmi serve --config FILE', or from the variable HMI_CONFIG. Flags and variables
# win over the file. A size is a number of bytes, or a text such as "256M".
"""


def _entry(setting: SettingDescription) -> str:
    lines = textwrap.wrap(setting.about, 108)
    return "\n" + "".join(f"# {line}\n" for line in lines) + f"#{setting.name} = {_toml(setting.name)}\n"


def _toml(name: str) -> str:
    default = DEFAULTS[name]
    if isinstance(default, bool):
        return str(default).lower()
    if is_size(name) and default and default % (1 << 20) == 0:
        return f'"{default >> 20}M"'
    return str(default) if isinstance(default, int | float) else f'"{"" if default is None else default}"'


def _texts() -> dict[str, str]:
    """Return each field's docstring on one line, read from the source since Python does not keep it."""
    body = ast.parse(inspect.getsource(Settings)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts


def _range(name: str, unit: str) -> str:
    within = bounds(name)
    if within.most >= ENDLESS:
        return f"from {amount(within.least, unit)}"
    return f"{amount(within.least, unit)} to {amount(within.most, unit)}"
