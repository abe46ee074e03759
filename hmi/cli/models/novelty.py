"""`hmi model known`: when a model says that it does not know."""

from __future__ import annotations

from typing import Any

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.output import print_done
from hmi.cli.framework.session import CliSession, segment


@click.command(cls=Command)
@click.argument("name", metavar="TENANT.MODEL")
@click.option(
    "--share", type=float, help="The share of its own texts that the model is to know, such as 0.97 or 0.99."
)
@click.option("--off", is_flag=True, help="Never say that it does not know.")
@as_json
@pass_session
def known(session: CliSession, name: str, share: float | None, off: bool, as_json: bool) -> None:
    """Show or set when a model says that it does not know.

    A model knows a text that is as similar to its rows as the given share of these rows, and of pieces of
    them, are to each other.
    The lower the share, the more foreign texts are refused, and the more of its own. Answers have `known`,
    and keep their label and score. The model's next text obeys it.
    """
    if off and share is not None:
        raise click.UsageError("give --share or --off, not both")
    path = f"/manage/models/{segment(name)}"
    with session.calls() as calls:
        if off or share is not None:
            found = calls.request("PATCH", path, {"known_share": share})
        else:
            found = calls.request("GET", path)
    shown = {"model": name, **{field: found[field] for field in ("known_share", "known_threshold")}}
    print_done(shown, f"{name}: {_said(found)}", as_json)


def _said(found: dict[str, Any]) -> str:
    """Return the setting in words."""
    if found["known_share"] is None:
        return "it never says that it does not know"
    if found["known_threshold"] is None:
        return "it has no threshold: it needs 40 rows and a version that was trained with this release"
    return (
        f"it is to know {100 * found['known_share']:g}% of its own texts, and does not know one whose "
        f"similarity to its rows is below {found['known_threshold']:.4f}"
    )
