"""Onboard many tenants onto a running server; see --help. The logic is in hmi/cli/."""

from __future__ import annotations

from hmi.cli.batch import onboard

onboard(prog_name="onboard_tenants.py")
