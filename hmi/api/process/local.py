"""The calls of the route table without HTTP. The command line makes them on a data folder, as the
administrator."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from hmi.api.access.caller import ADMINISTRATOR
from hmi.api.body.expand import decompress_to
from hmi.api.http.audited import note_reply, objects_of, recorded_locally
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.plain import plain
from hmi.api.http.request_body import parse, parse_query
from hmi.api.http.route import Route
from hmi.api.infer.inference import InferenceEngine, TokenAudits
from hmi.api.process.building import build_engine, build_services
from hmi.api.protocols.texts import Write
from hmi.api.routes.table import ROUTES
from hmi.config import Settings
from hmi.core import DeletedParts, ModelId, Progress
from hmi.engine import TextRequest, TextResult
from hmi.engine.writing.request import WriteRequest
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.execution.compiling import compile_all
from hmi.manager import Manager
from hmi.metrics import Metrics

if TYPE_CHECKING:
    from hmi.stages.cascade.report import CascadeReport
    from hmi.stages.early_exit.report import Exits


class EngineAtStart:
    """An engine that is created when it is started: most commands ask no model, and importing it takes
    seconds."""

    def __init__(self, manager: Manager, metrics: Metrics) -> None:
        self._parts = manager, metrics
        self._engine: InferenceEngine | None = None

    async def start(self) -> None:
        self._engine = build_engine(*self._parts)
        await self._engine.start()

    async def stop(self, *, drain: bool = True) -> None:
        if self._engine is not None:
            await self._engine.stop(drain=drain)

    async def infer(self, requests: list[TextRequest]) -> Sequence[TextResult]:
        assert self._engine is not None, "start it first"
        return await self._engine.infer(requests)

    def admitted(self, wants: Sequence[WriteRequest]) -> AbstractContextManager[Write]:
        assert self._engine is not None, "start it first"
        return self._engine.admitted(wants)

    def wait_s(self, tenant: str | None) -> float:
        return 0.0 if self._engine is None else self._engine.wait_s(tenant)

    async def load(self, models: Sequence[ModelId]) -> int:
        return 0 if self._engine is None else await self._engine.load(models)

    def forget(self, gone: DeletedParts) -> None:
        if self._engine is not None:
            self._engine.forget(gone)

    def cascade_report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        if self._engine is None:
            return None
        return self._engine.cascade_report(model, artefact, small_artefact, agreement)

    def ready(self) -> bool:
        return self._engine is not None and self._engine.ready()

    @property
    def exits(self) -> Exits | None:
        return None if self._engine is None else self._engine.exits

    @property
    def tokens(self) -> TokenAudits | None:
        return None if self._engine is None else self._engine.tokens

    def trouble(self) -> str | None:
        return None if self._engine is None else self._engine.trouble()


class LocalCalls:
    """The calls on a data folder, opened in this process. The caller must close it."""

    def __init__(self, settings: Settings) -> None:
        self.services = build_services(settings, EngineAtStart)

    def close(self) -> None:
        self.services.access.audit.log.close()
        self.services.manager.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        files: Mapping[str, Path] | None = None,
        query: Mapping[str, str] | None = None,
        once: str | None = None,
    ) -> Any:
        """Make a call and return its JSON answer. `files`, by part name, are copied. Raises HmiError.

        `once` is for servers. No answer can be lost between this process and its own data folder, so a
        repeated call finds what the first one made.
        """
        route, parameters = _match(method, path)
        call = RouteCall(self.services, ADMINISTRATOR, parameters, time.monotonic())
        call.query = parse_query(route, query or {})
        if route.body is not None:
            call.body = parse(route.body, json.dumps({} if body is None else body).encode())
        form = self.services.intake.uploads.form(None) if files else None
        try:
            if form is not None:
                call.files = {n: self._copy(n, f, form.folder) for n, f in (files or {}).items()}
            _check_files(route, call.files)
            with self._recorded(route, call):
                return asyncio.run(_run(route, call))
        except Conflict as error:
            raise self._hinted(error) from error
        finally:
            if form is not None:
                form.discard()

    def recorded(
        self, what: str, objects: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[dict[str, Any]]:
        """Context manager: the block changes the data folder. See `audited.recorded_locally`."""
        return recorded_locally(self.services.access.audit.log, what, objects)

    @contextmanager
    def _recorded(self, route: Route, call: RouteCall) -> Iterator[None]:
        """Write a change and its outcome to the audit log. Calls that only read are not written."""
        if not route.changes:
            yield
            return
        about, what = objects_of(call), f"{route.method} {route.path}"
        with recorded_locally(
            self.services.access.audit.log, what, about["object"], about["tenant"]
        ) as named:
            yield
            named |= call.noted

    def infer(self, path: str, body: Any) -> Any:
        """Make a call to infer, with an engine that runs for this one call, and return the JSON answer."""
        return self.infer_each(path, [body])[0]

    def infer_each(self, path: str, bodies: Sequence[Any]) -> list[Any]:
        """Make calls to infer one after another, with an engine that runs for these. Returns the answers."""
        route, parameters = _match("POST", path)
        parsed = [parse(route.body, json.dumps(body).encode()) for body in bodies]

        def calls() -> Iterator[RouteCall]:
            for body in parsed:
                call = RouteCall(self.services, ADMINISTRATOR, parameters, time.monotonic())
                call.body = body
                yield call

        compile_all()  # before the event loop, where Ctrl-C would not end it
        return asyncio.run(_run_with_engine(self.services.engine, route, calls()))

    def run(self, job: str, on_progress: Callable[[Progress], None]) -> None:
        """Run a queued job to its end, in a process of its own that ends with this one."""
        self.services.manager.runner.run_one(job, on_progress)

    def _hinted(self, error: Conflict) -> Conflict:
        """The error with the commands for a queued job. A server would start it, but on a bare folder
        nothing does."""
        job = error.details.get("job")
        if job is None or self.services.manager.job(job).state != "queued":
            return error
        return Conflict(
            f"{error.message.partition(':')[0]}, and nothing runs it: continue it with 'hmi job resume "
            f"{job}', or end it with 'hmi job cancel {job}'",
            **error.details,
        )

    def _copy(self, name: str, file: Path, folder: Path) -> Path:
        target = folder / name
        try:
            with file.open("rb") as source:
                decompress_to(source, target, name, self.services.settings.max_upload_bytes)
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}", field=name) from error
        return target


def _match(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route of a call, and the parameters in its path. Raises NotFound for an empty parameter."""
    for route in ROUTES:
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)
        found = re.fullmatch(pattern, path)
        if route.method == method and found:
            return route, {name: unquote(value) for name, value in found.groupdict().items()}
    # The command line builds the paths, so only an empty part can keep one from matching.
    raise NotFound(f"{unquote(path)!r} has an empty part: give each name and id at least one character")


def _check_files(route: Route, files: Mapping[str, Path]) -> None:
    for name, required in route.files.items():
        if required and name not in files:
            raise InvalidInput(f"{name} is missing: give a file", field=name)


async def _run(route: Route, call: RouteCall) -> Any:
    reply = await route.handler(call)
    assert isinstance(reply, Reply)
    note_reply(call, reply)
    return plain(reply.body)


async def _run_with_engine(engine: InferenceEngine, route: Route, calls: Iterable[RouteCall]) -> list[Any]:
    await engine.start()
    try:
        return [await _run(route, call) for call in calls]
    finally:
        await engine.stop(drain=True)
