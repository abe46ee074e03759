"""`hmi store`: inspects, checks and cleans up what is on the disk."""

from __future__ import annotations

import click

from hmi.cli.base import Group
from hmi.cli.store.archives import export, import_
from hmi.cli.store.care import compact, gc, info, scrub, verify
from hmi.cli.store.figures import diff, top


@click.group(cls=Group)
def store() -> None:
    """Inspect, check and clean up what the data folder stores."""


for _command in (info, verify, scrub, gc, compact, export, import_, diff, top):
    store.add_command(_command)
