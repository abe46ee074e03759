"""`hmi doctor`: checks an installation, its machine, a data folder and a server, and says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hmi.config import Settings
from hmi.doctor.finding import Finding, findings_of
from hmi.doctor.installation import installation_findings
from hmi.doctor.machine import machine_findings, settings_findings
from hmi.doctor.server import Ask, own_server_findings

__all__ = ["Finding", "examine"]


def examine(settings: Settings, ask_of: Callable[[str], Ask], *, deep: bool = False) -> Iterable[Finding]:
    """Yield the findings on this machine, part by part. `deep` reads every byte of the data folder.

    ask_of: makes calls of a URL.

    A check that fails becomes a finding of its own, so the others still run.
    """
    from hmi.doctor.folder import folder_findings

    parts: dict[str, Callable[[], Iterable[Finding]]] = {
        "installation": lambda: installation_findings(settings),
        "machine": lambda: machine_findings(settings),
        "settings": lambda: settings_findings(settings, serving=True),
        "data folder": lambda: folder_findings(settings, deep=deep),
        "server": lambda: own_server_findings(settings, ask_of),
    }
    for name, part in parts.items():
        yield from findings_of(name, part)
