"""`hmi profile`: the times of executors and of token adaptation on this machine; two models in a cascade.

`hmi root show` prints the table of the executors' times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.options import FILE, Whole, job_options
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.cli.framework.progress import finish
from hmi.cli.framework.reading import reading_options
from hmi.cli.framework.session import CliSession, segment
from hmi.cli.models.cascades import print_cascade
from hmi.errors import Conflict, NotFound

if TYPE_CHECKING:
    from hmi.core import RootRecord
    from hmi.manager import Manager
    from hmi.stores.profiles import Profile, StageProfile


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
        roots = _roots_to_measure(manager, root)
        compile_all()
        found = [_stage_profile(manager, record, again, as_json) for record in roots]
    if as_json:
        print_json(found)


def _roots_to_measure(manager: Manager, name: str | None) -> list[RootRecord]:
    """Return the root of this name, or all encoders' roots. Raises NotFound, also if there is none, and
    Conflict for a language model."""
    if name is not None:
        root = manager.registry.root(name)
        if root.generates:
            raise Conflict(f"root {name!r} is a language model, which no executor runs yet", field="root")
        return [root]
    roots = [root for root in manager.registry.roots() if not root.generates]
    if not roots:
        raise NotFound("there is no encoder's root to measure: 'hmi root import NAME SOURCE' imports one")
    return roots


def _stage_profile(manager: Manager, record: RootRecord, again: bool, as_json: bool) -> dict[str, Any]:
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
        root = load_root(manager.root_files.folder(record.name, record.version))
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


DIFFERS = 1.25
"""Times that differ by this factor are reported: smaller differences are usual on a busy machine."""


class Fallback(CommandGroup):
    """A group whose command `executors` runs if no command is named: `hmi profile ROOT` means it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = any(arg in self.commands or arg in ctx.help_option_names for arg in args)
        return super().parse_args(ctx, args if named else ["executors", *args])


@click.group(cls=Fallback)
def profile() -> None:
    """Measure the executors of roots, settings of stages on them, or a cascade of two models.

    'hmi profile [ROOT]' is short for 'hmi profile executors [ROOT]'.
    """


@profile.command(cls=FolderCommand)
@click.argument("root", required=False)
@click.option("--again", is_flag=True, help="Measure again, even if the times on this machine are known.")
@as_json
@pass_session
def executors(session: CliSession, root: str | None, again: bool, as_json: bool) -> None:
    """Measure the executors of ROOT, or of every root, on this machine.

    On a new installation it compiles first. The times are kept in the data folder. A server reads them when
    it loads the root, and runs the fastest executor; it measures by itself what it does not find.
    """
    from hmi.execution.compiling import compile_all

    with session.local() as local:
        manager = local.services.manager
        if manager.settings.device == "cuda":
            from hmi.execution.cuda.choose import check_device  # imports torch, which takes seconds

            check_device("cuda")
        roots = _roots_to_measure(manager, root)
        compile_all()
        found = [_profile(manager, record, again, as_json) for record in roots]
    if as_json:
        print_json(found)


profile.add_command(stages)


@profile.command()
@click.argument("large", metavar="TENANT.LARGE")
@click.argument("data", type=FILE)
@click.option(
    "--small",
    metavar="TENANT.SMALL",
    help="The model that is asked first: of the same task and labels, usually on another root. "
    "TENANT.LARGE@VERSION is an earlier version of LARGE, which becomes a model LARGE-vVERSION. Without "
    "--small, a ramp of LARGE itself answers first.",
)
@click.option(
    "--skip-bad-rows", "skip", type=Whole(0), default=0, metavar="N", help="Leave out up to N bad rows."
)
@reading_options
@job_options
@pass_session
def cascade(
    session: CliSession,
    large: str,
    data: Path,
    small: str | None,
    skip: int,
    reading: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Profile a cascade: SMALL answers first, LARGE the texts that need it.

    DATA has labelled rows that neither model was trained on, at least 200. Requests go on naming LARGE. SMALL
    answers once LARGE has an objective with an agreement, and audits of its own traffic have shown that the
    cascade keeps it: 'hmi model cascade show LARGE'.
    """
    session.may_start_jobs()
    with session.calls() as calls:
        body = {"small": small, "skip_bad_rows": skip, "options": reading}
        path = f"/manage/models/{segment(large)}/cascade"
        job = calls.request("POST", path, body, {"data": data})["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)
        if not (detach or as_json):
            print_cascade(calls.request("GET", path))


def _profile(manager: Manager, record: RootRecord, again: bool, as_json: bool) -> dict[str, Any]:
    from hmi.api.views.records import execution_view
    from hmi.execution.machine import fingerprint

    wanted = manager.settings.precision
    stored = manager.profiles.get(record.name, record.version, fingerprint())
    new = _measure_root(manager, record) if again or stored is None else None
    shown = new or stored
    assert shown is not None
    view = execution_view(shown, wanted)
    assert view is not None
    execution = view.model_dump(mode="json")
    changes = [] if new is None or stored is None else changes_of(stored, new, wanted)
    if not as_json:
        print_execution(record.name, execution)
        for change in changes:
            notes.print(f"{record.name}: {change}", markup=False, soft_wrap=True)
    if new is not None:  # after the table, which a full disk must not cost
        manager.profiles.put(record.name, record.version, new)
        if not as_json:
            notes.print("a server that runs takes this at its next start", markup=False)
    return {"root": record.name, "measured": new is not None, "changes": changes, "execution": execution}


def _measure_root(manager: Manager, record: RootRecord) -> Profile:
    from hmi.execution.choose import measure  # imports torch, which takes seconds
    from hmi.model.sources.root import load_root

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(f"{record.name}: loading", total=None)
        root = load_root(manager.root_files.folder(record.name, record.version))

        def show(step: str, done: int, of: int) -> None:
            bar.update(task, description=f"{record.name}: {step}", completed=done, total=of)

        return measure(root, show)


def changes_of(stored: Profile, new: Profile, wanted: str) -> list[str]:
    """Return the differences between two measurements, one sentence each."""
    from hmi.execution.fastest import fastest

    before, after = (fastest(p.measured, wanted).name for p in (stored, new))
    found = [] if before == after else [f"now {after} is the fastest; it was {before}"]
    old = {m.name: m.us_per_token for m in stored.measured}
    for one in new.measured:
        for batch, us in one.us_per_token.items():
            was = old.get(one.name, {}).get(batch)
            if was and not 1 / DIFFERS < us / was < DIFFERS:
                found.append(f"{one.name} takes {us:.0f} µs a token ({batch}); it took {was:.0f}")
    return found


def print_execution(root: str, execution: Mapping[str, Any]) -> None:
    """Print a row for each executor of a root's `execution`, as docs/http.md describes it."""
    batches: dict[str, list[int]] = execution["batches"]
    rows = [
        {
            "root": root,
            "executor": one["executor"],
            **{f"us {name}": round(us, 1) for name, us in one["us_per_token"].items()},
            "cosine": f"{one['cosine']:.6f}",
            "runs": "runs" if one["executor"] == execution["executor"] else "",
        }
        for one in execution["measured"]
    ]
    heads = {f"us {name}": f"µs/TOKEN, {_said(lengths)}" for name, lengths in batches.items()}
    print_table(rows, {"root": "ROOT", "executor": "EXECUTOR", **heads, "cosine": "COSINE", "runs": ""}, "")


def _said(lengths: list[int]) -> str:
    if len(lengths) == 1:
        return f"1 × {lengths[0]}"
    return f"{len(lengths)} TEXTS OF {min(lengths)} TO {max(lengths)}"
