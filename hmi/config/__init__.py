"""The settings of one process, and where they come from: flags, the environment, a TOML file, defaults."""

from __future__ import annotations

from hmi.config.settings import MIB, STAGES, Settings
from hmi.config.values import PREFIX

__all__ = ["MIB", "PREFIX", "STAGES", "Settings"]
