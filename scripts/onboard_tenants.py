"""Creates many tenants, keys and models on a running server; see --help. The code is in hmi/cli/batch.py."""

from __future__ import annotations

from hmi.cli.batch import onboard

onboard(prog_name="onboard_tenants.py")
