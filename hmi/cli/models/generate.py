"""`hmi generate`: lets a model write a text, in this process or on a server."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.options import Number, Whole
from hmi.cli.framework.output import notes, print_json
from hmi.cli.framework.session import CliSession, segment
from hmi.errors import HmiError, InvalidInput
from hmi.sizes import counted

ENDS = {
    "end": "the model ended the text, or it has its form",
    "stop": "a stop string came",
    "length": "it has the most tokens: --max-tokens",
}


@click.command("generate", cls=Command)
@click.argument("model", metavar="TENANT.MODEL")
@click.argument("prompt", required=False)
@click.option("--chat", is_flag=True, help="PROMPT is a user's message; the text is the model's answer.")
@click.option("--system", metavar="TEXT", help="A system message before the chat. It implies --chat.")
@click.option(
    "--max-tokens", type=Whole(min=1), metavar="N", help="Write at most this many tokens (default 256)."
)
@click.option(
    "--temperature",
    type=Number(0, 100),
    metavar="T",
    help="0, the default, takes the likeliest token; 1 draws as the model expects.",
)
@click.option("--top-p", type=Number(0, 1), metavar="P", help="Draw among the best tokens of this sum.")
@click.option("--top-k", type=Whole(min=0), metavar="K", help="Draw among this many of the best tokens.")
@click.option("--seed", type=Whole(min=0), metavar="N", help="The same seed and version draw the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the text before this one. Repeatable.")
@click.option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The text is JSON that is valid by the JSON schema in FILE.",
)
@click.option(
    "--choices",
    metavar="A,B,…",
    help="The text is one of these, with their spaces: after most prompts give ' A, B'.",
)
@click.option("--regex", metavar="REGEX", help="The whole text matches it, in Rust's syntax.")
@as_json
@pass_session
def generate(
    session: CliSession,
    model: str,
    prompt: str | None,
    chat: bool,
    system: str | None,
    stop: tuple[str, ...],
    schema: Path | None,
    choices: str | None,
    regex: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Let TENANT.MODEL write the text that follows PROMPT.

    Without PROMPT, or with -, it is read from standard input, without the line break at its end. A server
    (--url) sends the text as it is written. A data folder's text is shown once it is whole.
    """
    body = {name: value for name, value in options.items() if value is not None}
    if stop:
        body["stop"] = list(stop)
    if form := _form(schema, choices, regex):
        body["form"] = form
    said = sys.stdin.read().removesuffix("\n") if prompt in (None, "-") else prompt
    if chat or system is not None:
        first = [] if system is None else [{"role": "system", "content": system}]
        body["messages"] = [*first, {"role": "user", "content": said}]
    else:
        body["prompt"] = said
    try:
        answer = _written(session, model, body, show=not as_json)
    except HmiError as error:
        error.message += _hint(error.message, model)
        raise
    if as_json:
        print_json(answer)
    elif notes.is_terminal:
        notes.print(_figures(answer), markup=False, soft_wrap=True)


def _form(schema: Path | None, choices: str | None, regex: str | None) -> dict[str, Any]:
    """The call's `form`. It refuses several at once."""
    form: dict[str, Any] = {}
    if schema is not None:
        try:
            form["json_schema"] = json.loads(schema.read_text("utf-8"))
        except ValueError as error:
            raise InvalidInput(f"{schema} is no JSON: {error}", field="schema") from error
    if choices is not None:
        form["choices"] = found = choices.split(",")
        if len({choice.startswith(" ") for choice in found}) > 1:
            raise InvalidInput(
                "--choices: some begin with a space and some do not, and the text would: give all of them "
                "one, as in ' yes, no', or none, as in 'yes,no'",
                field="choices",
            )
    if regex is not None:
        form["regex"] = regex
    return form


def _written(session: CliSession, model: str, body: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """Return the whole answer. show: print its text, a server's while it comes."""
    if session.remote:
        return _streamed(session, model, body, show=show)
    with session.local() as local:
        answer: dict[str, Any] = local.infer(f"/generate/{segment(model)}", body)
    if show:
        _print([answer["text"]])
    return answer


def _streamed(session: CliSession, model: str, body: dict[str, Any], *, show: bool) -> dict[str, Any]:
    from hmi.client import Client, GeneratedText  # whose libraries take a tenth of a second

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each call, among the lines of the text
    whole: list[GeneratedText] = []
    with Client(session.url, session.key, ca=session.ca) as client:
        with closing(client.stream(model, **body)) as coming:

            def texts() -> Iterator[str]:
                for piece in coming:
                    if isinstance(piece, GeneratedText):
                        whole.append(piece)
                    else:
                        yield piece.text

            if show:
                _print(texts())
            else:
                for _ in texts():
                    pass
    return whole[0].model_dump(mode="json")


def _print(pieces: Iterable[str]) -> None:
    """Print a text piece by piece, and a line break if it has none at its end, also if it breaks off."""
    last = ""
    try:
        for piece in pieces:
            click.echo(piece, nl=False, color=True)  # without it, echo leaves colours out of a pipe
            last = piece or last
    finally:
        if not last.endswith("\n"):
            click.echo()


def _figures(answer: dict[str, Any]) -> str:
    usage, timing = answer["usage"], answer["timing"]
    count = usage["written_tokens"]
    rest_s = timing.get("rest_ms", 0.0) / 1e3
    rate = f", {(count - 1) / rest_s:,.1f} a second" if count > 1 and rest_s > 0 else ""
    return f"{counted(count, 'token')}{rate}; {ENDS.get(answer['finish'], answer['finish'])}"


def _hint(message: str, model: str) -> str:
    """Return a hint to add to an error: the command for a model that writes nothing."""
    return f", or hmi infer {model}" if ": use POST /infer/" in message else ""
