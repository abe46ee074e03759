"""Reads settings from flags, the environment and a TOML file, and keeps where each came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hmi.config.settings import DEFAULTS, NEEDED, Settings, checked, missing
from hmi.config.values import PREFIX, flag, from_text, from_toml, variable
from hmi.errors import InvalidInput

CONFIG_VARIABLE: Final = "HMI_CONFIG"
CLIENT_VARIABLES: Final = ("HMI_URL", "HMI_KEY", "HMI_CA", "HMI_CLIENT_CERT", CONFIG_VARIABLE)
"""Variables that commands read beside the settings."""


@dataclass(frozen=True)
class Configuration:
    """Settings with the source of each."""

    settings: Settings
    sources: Mapping[str, str]
    """The source of each setting: `flag --port`, `environment HMI_PORT`, `/etc/hmi.toml line 3` or `default`.
    """
    file: Path | None
    """The TOML file that was read; None: none was named."""


@dataclass
class Gathered:
    """The values that the sources give, with every problem that they have."""

    file: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[InvalidInput] = field(default_factory=list)

    def take(self, name: str, value: Any, source: str, prefix: str = "") -> None:
        """Use a value in place of that of a weaker source, unless it is impossible."""
        try:
            self.values[name], self.sources[name] = checked(name, value), source
        except InvalidInput as error:
            self.problems.append(_placed(error, prefix))


def read(
    environ: Mapping[str, str] | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Configuration:
    """Return the settings. `file` is read in place of the one that HMI_CONFIG names.

    flags: values by setting; None and missing ones are not given. Raises InvalidInput with the first problem.
    """
    gathered = gather(environ, file, flags)
    if gathered.problems:
        raise gathered.problems[0]
    sources = {name: gathered.sources.get(name, "default") for name in DEFAULTS}
    return Configuration(Settings(**gathered.values), sources, gathered.file)


def gather(
    environ: Mapping[str, str] | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Gathered:
    """Read all sources as `read`, and return every problem instead of raising the first."""
    environ = os.environ if environ is None else environ
    named = environ.get(CONFIG_VARIABLE)
    found = Gathered(file if file is not None else Path(named) if named else None)
    if found.file is not None:
        _read_file(found, found.file.expanduser().absolute())
    for name in DEFAULTS:
        text = environ.get(variable(name))
        if text and (flags or {}).get(name) is None:  # a flag hides a wrong variable, too
            try:
                found.take(name, from_text(name, text), f"environment {variable(name)}")
            except InvalidInput as error:
                found.problems.append(error)
    for name, value in (flags or {}).items():
        if value is None:
            continue
        if name not in DEFAULTS:
            found.problems.append(_unknown(name, "unknown setting"))
            continue
        found.take(name, value, f"flag {flag(name)}")
    for name, needed in NEEDED.items():
        wrong = {problem.details.get("field") for problem in found.problems}
        if found.values.get(name) is not None and found.values.get(needed) is None and needed not in wrong:
            found.problems.append(missing(name, needed))
    return found


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each variable that begins with HMI_ and that nothing reads."""
    environ = os.environ if environ is None else environ
    known = {*map(variable, DEFAULTS), *CLIENT_VARIABLES}
    return [
        f"{name} is set, but no setting has that name{_meant(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    ]


def _read_file(found: Gathered, file: Path) -> None:
    import tomllib  # as difflib

    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        cure = "check --config and HMI_CONFIG"
        found.problems.append(InvalidInput(f"{file} cannot be read ({error.strerror}): {cure}"))
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        found.problems.append(InvalidInput(f"{file} is not TOML in UTF-8: {error}"))
        return
    lines = dict(_lines(text))
    for key, value in content.items():
        place = f"{file}" + (f" line {lines[key]}" if key in lines else "")
        if key not in DEFAULTS:
            found.problems.append(_placed(_unknown(key, "unknown setting"), place))
            continue
        try:
            found.take(key, from_toml(key, value, file.parent), place, place)
        except InvalidInput as error:
            found.problems.append(_placed(error, place))


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The top keys and tables of a TOML file, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        key = re.match(r"""\s*\[?\s*["']?([\w-]+)["']?""", line)
        if key:
            yield key[1], number


def _unknown(name: str, what: str) -> InvalidInput:
    meant = _meant(name, DEFAULTS)
    cure = meant or ": 'hmi config show' lists them all"
    return InvalidInput(f"{what} {name[:80]!r}{cure}", field=name[:80])


def _meant(name: str, known: Mapping[str, Any] | set[str]) -> str:
    import difflib  # rarely needed, and this module is in the way of every command

    near = difflib.get_close_matches(name.replace("-", "_"), known, 1, 0.7)
    return f": did you mean {near[0]}?" if near else ""


def _placed(error: InvalidInput, place: str) -> InvalidInput:
    """The error with the place where the value stands."""
    return InvalidInput(f"{place}: {error.message}", **error.details) if place else error
