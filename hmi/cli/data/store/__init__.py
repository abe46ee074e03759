"""`hmi store`: inspects, checks and cleans up what is on the disk."""

from __future__ import annotations

import click

from hmi.cli.data.store.archives import export, import_
from hmi.cli.data.store.care import compact, gc, info, scrub, verify
from hmi.cli.data.store.figures import diff, top
from hmi.cli.data.store.remotes import pull, push, remote
from hmi.cli.framework.base import CommandGroup


@click.group(cls=CommandGroup)
def store() -> None:
    """Inspect, check and clean up what the data folder stores."""


for _command in (info, verify, scrub, gc, compact, export, import_, push, pull, remote, diff, top):
    store.add_command(_command)
