"""Builds the PLOTs of many domains; see --help. The code is in hmi/cli/tenants/plots.py."""

from __future__ import annotations

from hmi.cli.tenants.plots import build_plots

build_plots(prog_name="build_plots.py")
