"""The picture of `hmi top`, drawn with rich for terminals of 80 columns and more."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hmi.cli.framework.output import PLAIN_WIDTH, size
from hmi.cli.top.figures import Figures, TenantFigures, WritingFigures
from hmi.usage import OTHERS

BAR = 8
"""Cells of a bar."""
LABEL = 7
"""Cells of the first column."""
COLUMNS = 55
"""Cells beside the names in the tables of executors and tenants."""
LEAST_TENANTS = 3
"""Tenants that are shown even if the terminal is lower."""


def view(
    shown: Figures, where: str, state: str, width: int = PLAIN_WIDTH, height: int = 1000
) -> RenderableType:
    """Draw one view. where: the server's address. state: `ready`, or why it is not."""
    longest = max(12, width - COLUMNS)
    head = Text.assemble(
        ("hmi top", "bold"),
        "  ",
        where,
        "  ",
        (state, "green" if state == "ready" else "bold red"),
        f"  {shown.version}" if shown.version else "",
        f"  up {_span(shown.process.uptime_s)}",
    )
    parts: list[RenderableType] = [head, Text(), _levels(shown), _notes(shown), Text()]
    lines = 12 if shown.writing is None else 14
    if shown.executors:
        parts += [_executors(shown, longest), Text()]
        lines += len(shown.executors) + 2
    if shown.tenants:
        parts.append(_tenants(shown.tenants, longest, max(LEAST_TENANTS, height - lines - 3)))
    elif not shown.tenants_told:
        parts.append(Text("tenants: only for an administrator's key (--key)", "dim"))
    else:
        parts.append(Text("no tenant has sent anything since the last view", "dim"))
    return Group(*parts)


def _levels(shown: Figures) -> Table:
    """A line for each part of the server. Numbers have a fixed width, so that a live view stands still."""
    traffic, process, queue, batches, pool = (
        shown.traffic,
        shown.process,
        shown.queue,
        shown.batches,
        shown.pool,
    )
    filled = pool.bytes / pool.limit_bytes if pool.bytes is not None and pool.limit_bytes else None
    missed, evicted = (_number(pool.events_s.get(event)) for event in ("miss", "eviction"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=LABEL)
    table.add_row(
        "ANSWERS",
        _cell(traffic.calls_s, "calls/s"),
        _cell(traffic.texts_s, "texts/s"),
        _cell(traffic.tokens_s, "tokens/s"),
        f"p50 {_ms(traffic.p50_ms)}, p95 {_ms(traffic.p95_ms)}",
    )
    table.add_row(
        "QUEUE",
        f"oldest {_ms(queue.oldest_ms)}",
        _cell(queue.texts, "texts"),
        _cell(queue.tokens, "tokens"),
        f"p50 {_ms(queue.wait_p50_ms)}, p95 {_ms(queue.wait_p95_ms)}",
    )
    table.add_row(
        "BATCHES",
        _cell(batches.per_s, "/s, each"),
        _cell(batches.texts, "texts"),
        _cell(batches.tokens, "tokens"),
        f"{_number(batches.tenants)} tenants, {_ms(batches.ms)}",
    )
    table.add_row(
        "COMPUTE",
        _bar(process.busy),
        _cell(process.streams, "streams"),
        _cell(process.cpu, "cores"),
        "of processors in use",
    )
    table.add_row(
        "POOL",
        _bar(filled),
        f"of {_bytes(pool.limit_bytes)}",
        _cell(pool.events_s.get("hit"), "hits/s"),
        f"{missed} miss, {evicted} evict",
    )
    return table


def _notes(shown: Figures) -> Table:
    """Lines of running text under the levels."""
    refused = ", ".join(f"{kind} {_number(rate)}/s" for kind, rate in shown.traffic.refused_s.items())
    own, files = (shown.process.memory_bytes.get(tier) for tier in ("anonymous", "files"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=LABEL)
    table.add_row("REFUSED", Text(refused, "red") if refused else "nothing")
    whole = _bytes(shown.process.resident_bytes)
    table.add_row("MEMORY", f"{whole} resident: {_bytes(own)} its own, {_bytes(files)} mapped files")
    table.add_row("STAGES", _stages(shown))
    if shown.writing is not None:
        _add_writing(table, shown.writing)
    jobs = ", ".join(f"{count} {state}" for state, count in shown.jobs.items())
    table.add_row("JOBS", jobs or "none")
    return table


def _add_writing(table: Table, writing: WritingFigures) -> None:
    first = f"first token p50 {_ms(writing.first_p50_ms)}, p95 {_ms(writing.first_p95_ms)}"
    texts = f"{_number(writing.running)} texts, {_number(writing.waiting)} wait"
    table.add_row("WRITING", f"{texts}, {_number(writing.tokens_s)} tokens/s, {first}")
    pages = (f"{_number(writing.pages.get(state))} {state}" for state in ("held", "kept", "free"))
    table.add_row("PAGES", ", ".join(pages))


def _stages(shown: Figures) -> str:
    saving = shown.saving
    if not (saving.early_share or saving.adapted_share) and saving.returned_share is None:
        return "no text left early or gave up rows, none came to a cascade"
    parts = [f"{100 * (saving.early_share or 0.0):.0f}% of texts left early"]
    if saving.saved_share:
        parts.append(f"{100 * saving.saved_share:.0f}% of compute avoided")
    if saving.returned_share is not None:
        parts.append(f"{100 * saving.returned_share:.0f}% returned by cascades")
    if saving.adapted_share:
        parts.append(f"{100 * saving.adapted_share:.0f}% gave up rows")
    return ", ".join(parts)


def _executors(shown: Figures, longest: int) -> Table:
    batches = list(dict.fromkeys(batch for runs in shown.executors for batch in runs.us_per_token))
    table = _table("ROOT", "EXECUTOR")
    for n, batch in enumerate(batches):
        heading = batch.upper() if n else f"µs/TOKEN: {batch.upper()}"
        table.add_column(heading, justify="right", no_wrap=True)
    for runs in shown.executors:
        times = [_number(runs.us_per_token.get(batch)) for batch in batches]
        table.add_row(_cut(runs.root, longest), runs.executor, *times)
    return table


def _tenants(tenants: list[TenantFigures], longest: int, most: int) -> Table:
    shown = tenants[:most]
    table = _table("TENANT")
    # 80 columns are few, and in most services no text leaves early, or none is computed through all layers.
    shares = {"EARLY": [t.early_share for t in shown], "DEEP": [t.deep_share for t in shown]}
    shares = {name: of for name, of in shares.items() if any(of)}
    longest -= 3 * len(shares)
    for heading in ("CALLS/S", "TEXTS/S", "TOKENS/S", *shares, "µs/TOKEN"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("COMPUTE", no_wrap=True)
    for i, tenant in enumerate(shown):
        table.add_row(
            "all others" if tenant.tenant == OTHERS else _cut(tenant.tenant, longest),
            *(_number(rate) for rate in (tenant.calls_s, tenant.texts_s, tenant.tokens_s)),
            *(f"{100 * of[i]:.0f}%" for of in shares.values()),
            _number(tenant.us_per_token),
            _bar(tenant.compute_share),
        )
    if len(tenants) > most:
        table.caption, table.caption_justify = f"{len(tenants) - most} more", "left"
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    return table


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _cell(value: float | None, unit: str) -> str:
    return f"{_number(value):>5} {unit}"


def _bar(share: float | None) -> Text:
    if share is None:
        return Text("–")
    full = round(BAR * min(share, 1.0))
    return Text.assemble(("━" * full, "cyan"), ("━" * (BAR - full), "bright_black"), f" {100 * share:3.0f}%")


def _number(value: float | None) -> str:
    """Three figures and a unit of thousands, such as 1.23, 45.6, 789, 12.3k, 4.56M."""
    if value is None:
        return "–"
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            break
        value /= 1000
    if not unit and value == round(value):
        return f"{value:.0f}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{unit}"


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{_number(value / 1e3)} s" if value >= 1000 else f"{_number(value)} ms"


def _bytes(value: float | None) -> str:
    return "–" if value is None else size(value)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {s:02d} s"
