"""The settings of one process, and where they come from: flags, the environment, a TOML file, defaults."""

from __future__ import annotations

from hmi.config.settings import DEVICES, MIB, PRECISIONS, STAGES, Settings, bounds
from hmi.config.values import PREFIX

__all__ = ["DEVICES", "MIB", "PRECISIONS", "PREFIX", "STAGES", "Settings", "bounds"]
