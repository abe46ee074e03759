"""Values of settings as operators write them: text in flags and in the environment, values in a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hmi.config.settings import DEFAULTS, PATHS, Settings
from hmi.errors import InvalidInput
from hmi.sizes import FORMS, parse_bytes

PREFIX: Final = "HMI_"
_TRUTH: Final = {"true": True, "1": True, "yes": True, "on": True}
_TRUTH.update({"false": False, "0": False, "no": False, "off": False})


def is_size(name: str) -> bool:
    """Return whether a setting is a size in bytes, which may be written as 50M."""
    return name.endswith("_bytes")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """Return the flag of `hmi serve` for a setting."""
    return "--" + name.replace("_", "-")


def from_text(name: str, text: str, called: str | None = None) -> Any:
    """Return the value that `text` stands for. Raises InvalidInput for text of another type.

    called: how the caller named the setting; None: by its variable.
    """
    called = variable(name) if called is None else called
    default = DEFAULTS[name]
    if isinstance(default, bool):
        return _truth(name, text, called)
    if not isinstance(default, int | float):
        return text
    try:
        if is_size(name):
            return parse_bytes(text)
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as error:
        raise InvalidInput(f"{called}={text!r} is not {_what(name)}{_cure(text)}", field=name) from error


def from_toml(name: str, value: Any, folder: Path) -> Any:
    """Return the setting's value for a value of a TOML file. Relative paths start at `folder`, the file's.

    Raises InvalidInput for a value of another type.
    """
    default = DEFAULTS[name]
    if name in PATHS:
        if value == "" and default is None:
            return None
        return str(folder / Path(_a(name, value, str)).expanduser())
    if isinstance(default, bool):
        return _a(name, value, bool)
    if isinstance(default, str):
        return _words(name, value) if isinstance(value, list) else _a(name, value, str)
    if is_size(name) and isinstance(value, str):
        return from_text(name, value, name)
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else int | float):
        raise _wrong(name, value)
    return value


def as_text(value: Any) -> str:
    """Return the text of a value in the environment, which `from_text` reads back."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def environment(settings: Settings) -> Mapping[str, str]:
    """Return the variables that give another process the same settings, whatever file or flags gave them."""
    return {
        variable(name): as_text(getattr(settings, name))
        for name, default in DEFAULTS.items()
        if getattr(settings, name) != default
    }


def _truth(name: str, text: str, called: str) -> bool:
    found = _TRUTH.get(text.strip().lower())
    if found is None:
        raise InvalidInput(f"{called}={text!r} is neither true nor false: give one of them", field=name)
    return found


def _words(name: str, values: list[Any]) -> str:
    if name != "stages" or not all(isinstance(value, str) for value in values):
        raise _wrong(name, values)
    return ",".join(values)


def _a(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _wrong(name, value)
    return value


def _wrong(name: str, value: Any) -> InvalidInput:
    quoted = isinstance(value, str)
    cure = ": leave the quotes out" if quoted and _reads(name, value) else ""
    return InvalidInput(f"{name} = {value!r} is not {_what(name)}{cure}", field=name)


def _reads(name: str, text: str) -> bool:
    try:
        from_text(name, text)
    except InvalidInput:
        return False
    return True


def _what(name: str) -> str:
    """Name the type of a setting."""
    default = DEFAULTS[name]
    if is_size(name):
        return f"a size: give {FORMS}"
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, int | float):
        return "a whole number" if isinstance(default, int) else "a number"
    return "a list of texts, or a text in quotes" if name == "stages" else "a text in quotes"


def _cure(text: str) -> str:
    """Explain the address that Kubernetes puts into the variables of a service called `hmi`."""
    if not text.startswith("tcp://"):
        return ""
    return ": Kubernetes set it for a service named hmi; set enableServiceLinks: false, or rename the service"
