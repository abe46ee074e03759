"""`hmi profile stages`: the times of token adaptation's settings on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.session import CliSession
from hmi.errors import NotFound

if TYPE_CHECKING:
    from hmi.core import RootRecord
    from hmi.manager import Manager
    from hmi.stores.profiles import StageProfile


@click.command("stages", cls=FolderCommand)
@click.argument("root", required=False)
@click.option("--again", is_flag=True, help="Measure again, even if the times on this machine are known.")
@as_json
@pass_session
def stages(session: CliSession, root: str | None, again: bool, as_json: bool) -> None:
    """Measure the settings of token adaptation on ROOT, or on every root, on this machine.

    The times are kept in the data folder. A planner weighs settings by them, and offers none that does not
    save time. A server measures by itself what it does not find once a model needs it.
    """
    from hmi.execution.compiling import compile_all

    with session.local() as local:
        manager = local.services.manager
        roots = roots_to_measure(manager, root)
        compile_all()
        found = [_profile(manager, record, again, as_json) for record in roots]
    if as_json:
        print_json(found)


def roots_to_measure(manager: Manager, name: str | None) -> list[RootRecord]:
    """Return the root of this name, or all roots. Raises NotFound, also if there is none."""
    roots = manager.registry.roots() if name is None else [manager.registry.root(name)]
    if not roots:
        raise NotFound("there is no root to measure: 'hmi root import NAME SOURCE' imports one")
    return roots


def _profile(manager: Manager, record: RootRecord, again: bool, as_json: bool) -> dict[str, Any]:
    from hmi.execution.choose import executor_for
    from hmi.model.sources.root import load_root
    from hmi.stages.planning.profile import Lab
    from hmi.stages.token_adaptation.stage import TokenAdaptation
    from hmi.stores.layout import Layout
    from hmi.stores.profiles import StageProfiles

    settings, layout = manager.settings, Layout(manager.settings.data)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(f"{record.name}: loading", total=None)
        root = load_root(layout.root(record.name, record.version))
        executor = executor_for(
            root,
            settings.precision,
            manager.profiles,
            wait=True,
            device=settings.device,
            device_bytes=settings.device_bytes,
        )

        def show(step: str, done: int, of: int) -> None:
            bar.update(task, description=f"{record.name}: {step}", completed=done, total=of)

        lab = Lab(
            TokenAdaptation(), executor, (record.name, record.version), root.info.shape, root.max_length
        )
        kept = StageProfiles(layout)
        found = None if again else lab.known(kept)
        new = lab.measure(show) if found is None else None
        executor.close()
    shown = new or found
    assert shown is not None
    rows = table(shown)
    if not as_json:
        _print(record.name, shown, rows)
    if new is not None:  # after the table, which a full disk must not cost
        kept.put(record.name, record.version, new)
    return {
        "root": record.name,
        "measured": new is not None,
        "executor": shown.executor,
        "settings": rows,
        "costs": {reads: cost.model_dump() for reads, cost in shown.costs.items()},
    }


def table(profile: StageProfile) -> list[dict[str, Any]]:
    """A row for each measured setting: milliseconds of each batch whose heads read [CLS], and what it saves
    in the mean of all batches, as a fraction of their time without a stage."""
    mine = [each for each in profile.samples if each.reads == "cls" and each.modules == 1]
    off = {each.batch: each.seconds for each in mine if each.setting == profile.settings[0]}
    rows = []
    for setting in profile.settings:
        times = {each.batch: each.seconds for each in mine if each.setting == setting}
        saves = 1.0 - sum(times[batch] / off[batch] for batch in off) / len(off)
        rows.append({"setting": setting, "ms": {b: s * 1e3 for b, s in times.items()}, "saves": saves})
    return rows


def _print(root: str, profile: StageProfile, rows: list[dict[str, Any]]) -> None:
    shown = [
        {
            "root": root,
            "setting": row["setting"],
            **{f"ms {batch}": f"{ms:.2f}" for batch, ms in row["ms"].items()},
            "saves": "" if row["setting"] == profile.settings[0] else f"{100 * row['saves']:.0f}%",
        }
        for row in rows
    ]
    heads = {f"ms {batch}": f"{batch}, ms" for batch in profile.batches}
    print_table(shown, {"root": "ROOT", "setting": "SETTING", **heads, "saves": "SAVES"}, "")
    margin = max(cost.margin for cost in profile.costs.values())
    notes.print(f"{root}: on {profile.executor}; nine in ten batches took at most {margin:.2f} of the fit")
