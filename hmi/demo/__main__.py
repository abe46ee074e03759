"""The command line of the demo: `python -m hmi.demo`, which `make demo` runs."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hmi.demo.dataset import Amounts
from hmi.demo.run import DemoOptions, run
from hmi.errors import HmiError

_LOG_WIDTH = 150


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("hmi-data"),
    envvar="HMI_DATA",
    show_default=True,
    help="The server's data folder.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder with your own text in the layout of docs/development.md, instead of text wheels.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the server (default: 8080, or a free port if it is taken).",
)
@click.option(
    "--key",
    envvar="HMI_KEY",
    help="An administrator's key, if the data folder has one (environment: HMI_KEY).",
)
@click.option("--ci", is_flag=True, help="Exit after the table; fail unless every tenant answered.")
@click.option(
    "--baseline", is_flag=True, help="Also fine-tune dedicated copies for three tasks and compare the scores."
)
@click.option(
    "--rows",
    type=click.IntRange(50, 5000),
    default=Amounts.train,
    show_default=True,
    help="Training rows of each tenant.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for the choice of rows.")
def main(
    data: Path,
    text: Path | None,
    port: int | None,
    key: str | None,
    ci: bool,
    baseline: bool,
    rows: int,
    seed: int,
) -> None:
    """Train models for fourteen tenants on real text, send their test rows, and print their scores."""
    amounts = Amounts(train=rows, seed=seed)
    options = DemoOptions(data.resolve(), text and text.resolve(), amounts, port, key, ci, baseline)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_LOG_WIDTH)
    try:
        raise SystemExit(run(options, console))
    except HmiError as error:
        console.print(f"[bold red]{error.kind}[/bold red]", highlight=False)
        console.print(error.message, highlight=False, markup=False)
        raise SystemExit(1) from error
    except KeyboardInterrupt as error:
        console.print("stopped; a second run continues from here")
        raise SystemExit(130) from error


if __name__ == "__main__":
    main()
