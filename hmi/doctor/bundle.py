"""A file for a bug report: findings, settings, versions and metrics, without names, keys or texts."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hmi.config.sources import Configuration
from hmi.doctor.finding import Finding

KEY = re.compile(r"hmi_[A-Za-z0-9_-]{20,}")
"""The form of a key. A bundle should hold none; any that it holds is removed."""


class Redactor:
    """Replaces names of tenants, models, domains, users, machines and folders. The same name gets the same
    number, so that findings can still be compared."""

    def __init__(self, names: Mapping[str, Sequence[str]], paths: Iterable[Path]) -> None:
        """names: what must not be told, by its kind. paths: folders whose place must not be told."""
        self._parts = {str(path): f"<{i}>" for i, path in enumerate(paths) if len(str(path)) > 1}
        for kind, found in names.items():
            for number, name in enumerate(sorted(set(found), key=len, reverse=True), 1):
                self._parts.setdefault(name, f"{kind}-{number}")
        ordered = sorted(self._parts, key=len, reverse=True)
        pattern = "|".join(map(re.escape, ordered))
        self._pattern = re.compile(rf"(?<![A-Za-z0-9-])(?:{pattern})(?![A-Za-z0-9-])") if ordered else None

    def __call__(self, text: str) -> str:
        text = KEY.sub("<key>", text)
        return text if self._pattern is None else self._pattern.sub(lambda f: self._parts[f[0]], text)


def write_bundle(
    file: Path, findings: Sequence[Finding], found: Configuration, metrics: str, redact: Redactor
) -> list[str]:
    """Write the bundle, a zip file. Returns the names of its parts.

    metrics: those of a running server as everybody may see them; "" without one.
    """
    settings = {name: _plain(getattr(found.settings, name)) for name in found.sources}
    parts = {
        "findings.json": _json([asdict(finding) for finding in findings]),
        "settings.json": _json({"values": settings, "sources": dict(found.sources)}),
        "machine.json": _json({"platform": platform.platform(), "cores": os.cpu_count()}),
        "packages.txt": "\n".join(sorted({f"{d.name}=={d.version}" for d in distributions()})),
        "metrics.txt": metrics,
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, redact(text))
    return list(parts)


def redactor_of(data: Path) -> Redactor:
    """Return a redactor of all names in the data folder, of this machine and of this user."""
    names: dict[str, list[str]] = {"host": [socket.gethostname()], "user": [Path.home().name]}
    if (data / "registry").is_dir():
        from hmi.stores.records.registry import Registry

        registry = Registry.open(data / "registry")
        try:
            models = registry.models(tolerant=True)
            names["tenant"] = [tenant.tenant for tenant in registry.tenants()]
            names["model"] = [model.name for model in models]
            domains = {version.domain for model in models for version in model.versions}
            names["domain"] = [*domains, *(root.name for root in registry.roots(tolerant=True))]
        finally:
            registry.close()
    return Redactor(names, [data, data.resolve(), Path.home(), Path.cwd()])


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
