# Made by scripts/sync_client.py of hmi/client/aio/client.py: change that file.
"""The synchronous client."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Self, Unpack, overload

from hmi.client.answers import (
    AuditLine,
    GeneratedText,
    Inference,
    Prediction,
    Stats,
    Written,
    inference,
    written,
)
from hmi.client.batches import Batch, InferOptions, Input, batches, encoded, is_one, parameters
from hmi.client.calls import Call, checked, generate, get, infer, segment
from hmi.client.config import ClientSettings, Config, from_environment
from hmi.client.errors import ApiError, TooLarge, Unavailable
from hmi.client.prompts import GenerateOptions, Messages, generate_body
from hmi.client.sync import io
from hmi.client.sync.jobs import Jobs
from hmi.client.sync.models import Models
from hmi.client.sync.resources import Domains, Files, Keys, Roots, Tenants
from hmi.client.sync.session import Session
from hmi.client.wire import broken_off

One = str | tuple[str, str] | Mapping[str, Any]


class Client:
    """A client of one server. Use it as a context manager, or close it with `close`.

    `url`, `key`, `ca` and `certificate` default to HMI_URL, HMI_KEY, HMI_CA and HMI_CLIENT_CERT, then to a
    server on this machine. The other settings are the fields of `hmi.client.config.Config`. It may be shared
    by tasks and threads as httpx's clients may. Every method raises `hmi.client.errors.ApiError`.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        ca: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.config = Config(**from_environment(url, key, ca, certificate), **settings)
        self.session = Session(self.config)
        self.roots = Roots(self.session)
        self.domains = Domains(self.session)
        self.tenants = Tenants(self.session)
        self.keys = Keys(self.session)
        self.models = Models(self.session)
        self.jobs = Jobs(self.session)
        self.files = Files(self.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.session.close()

    def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None
    ) -> Any:
        """Make a call that has no method here, and return its JSON. Only a GET is repeated."""
        call = Call(method, path, body, query=query or {}, repeatable=method == "GET")
        return self.session.send(call)

    def ready(self) -> bool:
        """Return whether the server takes requests now."""
        try:
            self.session.text("/readyz")
        except Unavailable:
            return False
        return True

    def stats(self) -> Stats:
        """Return what the server keeps, by tier. It needs an administrator's key."""
        return checked(Stats.model_validate, self.session.send(get("/manage/stats")))

    def audit(self, *, tenant: str | None = None, since: str | None = None) -> Iterator[AuditLine]:
        """Yield the lines of the audit log, oldest first; `since` is a time in RFC 3339."""
        after: str | None = None
        more = True
        while more:
            page = self.session.send(get("/manage/audit", tenant=tenant, since=since, after=after))
            for line in page["lines"]:
                yield checked(AuditLine.model_validate, line)
            after, more = page["position"], page["more"]

    @overload
    def infer(  # type: ignore[overload-overlap]  # a text is also an iterable of texts
        self, model: str, inputs: One, **options: Unpack[InferOptions]
    ) -> Prediction: ...

    @overload
    def infer(
        self, model: str, inputs: Iterable[Input], **options: Unpack[InferOptions]
    ) -> list[Prediction]: ...

    def infer(
        self, model: str, inputs: Any, **options: Unpack[InferOptions]
    ) -> Prediction | list[Prediction]:
        """Ask a model about one input, or about many.

        An input is a text, a pair of texts as a tuple, or a mapping as in docs/http.md; in a list, an input
        may also be a list of words. One input gives one Prediction, an iterable a list of them in the same
        order: long ones become several calls, `concurrency` at a time. The whole fails if one call does.
        """
        if is_one(inputs):
            (prediction,) = (self.call(model, [inputs], **options)).predictions
            return prediction
        return list(self.infer_iter(model, inputs, **options))

    def infer_iter(
        self, model: str, inputs: Iterable[Input], **options: Unpack[InferOptions]
    ) -> Iterator[Prediction]:
        """Yield the answer to each input, in order, while later ones are asked.

        `inputs` may be endless: it is read as answers are taken.
        """
        given = parameters(options)

        def ask(batch: Batch) -> list[Prediction]:
            return self._ask(model, batch, given)

        cut = batches(inputs, self.config.batch)
        for predictions in io.in_order(ask, cut, self.config.concurrency):
            yield from predictions

    def call(self, model: str, inputs: Iterable[Input], **options: Unpack[InferOptions]) -> Inference:
        """Make one call to infer, and return its whole answer, with timing and provenance."""
        body = {"inputs": [encoded(item) for item in inputs], "parameters": parameters(options)}
        answer = self.session.send(infer(f"/infer/{segment(model)}", body))
        return checked(inference, answer)

    def infer_mixed(
        self, asks: Iterable[tuple[str, Iterable[Input]]], **options: Unpack[InferOptions]
    ) -> list[Inference]:
        """Ask several models, of one or more tenants, in one call, which succeeds or fails as a whole."""
        given = parameters(options)
        body = [
            {"model": model, "inputs": [encoded(item) for item in inputs], "parameters": given}
            for model, inputs in asks
        ]
        answers = self.session.send(infer("/infer", body))
        return checked(lambda found: [inference(answer) for answer in found], answers)

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GeneratedText:
        """Let a model write a text after a prompt, or the next message of a chat.

        Waits at most `writing_timeout_s` for the whole text: `stream` has no such bound.
        """
        body = generate_body(prompt, messages, options, stream=False)
        return checked(GeneratedText.model_validate, self.session.send(generate(model, body)))

    def stream(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generator[Written, None, None]:
        """Yield the text in pieces (`TextPiece`) as it is written, then the whole (`GeneratedText`).

        A stream that has begun is not sent again if it breaks. Closing the iterator early closes the
        connection, and the server stops to write.
        """
        body, pieces = generate_body(prompt, messages, options, stream=True), 0
        with closing(self.session.events(generate(model, body))) as events:
            for event in events:
                pieces += 1
                piece = checked(partial(written, event.name), event.data)
                if piece is not None:
                    yield piece
                if isinstance(piece, GeneratedText):
                    return
        raise broken_off(self.config, pieces, "the text has no end")

    def _ask(self, model: str, batch: Batch, given: dict[str, Any]) -> list[Prediction]:
        body = {"inputs": batch.inputs, "parameters": given}
        try:
            answer = self.session.send(infer(f"/infer/{segment(model)}", body))
        except TooLarge as error:
            if not batch.may_halve(error):
                raise batch.placed(error) from None
            first, second = batch.halves()
            return [*self._ask(model, first, given), *self._ask(model, second, given)]
        except ApiError as error:
            raise batch.placed(error) from None
        return checked(inference, answer).predictions
