"""The calls of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from hmi.api.body.shares import Loan
from hmi.api.handlers.protocols.infer import values_in
from hmi.api.handlers.protocols.open_inference import Repository, server_metadata
from hmi.api.http.request_body import LIGHT_BYTES, LimitedBodyReader, most_values
from hmi.api.http.services import Services
from hmi.api.in_thread import OFF_LOOP_BYTES, OFF_LOOP_VALUES, off_loop
from hmi.api.protocols.oip.asking import Asked, ask_of
from hmi.api.rpc.admission import AdmissionGate, Messages, RpcCall, client_error
from hmi.api.rpc.infer import asked_of, parsed, response_of
from hmi.api.rpc.messages import MESSAGES, PACKAGE, parameter_value
from hmi.core import ModelId, Scope
from hmi.errors import Unavailable

NAME = f"{PACKAGE}.GRPCInferenceService"
Answer = Callable[[RpcCall, Any], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Described:
    """A call that sends one small message and gets one."""

    request: str
    response: str
    scope: Scope | None
    answer: Answer
    """Turns the request into the JSON form of the response."""


def handlers(services: Services, gate: AdmissionGate) -> grpc.GenericRpcHandler:
    """The handlers of all calls. Their messages pass through `gate`, so none is read before its caller may
    call."""
    # Every handler takes a stream: a handler of a single message would have read it before it runs.
    methods = {
        name: grpc.stream_unary_rpc_method_handler(_described(gate, name, each))
        for name, each in DESCRIBED.items()
    }
    methods["ModelInfer"] = grpc.stream_unary_rpc_method_handler(_infer(gate))
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(_stream(gate, services))
    return grpc.method_handlers_generic_handler(NAME, methods)


def _described(gate: AdmissionGate, name: str, call: Described) -> Callable[..., Any]:
    async def serve(messages: Messages, context: Any) -> bytes:
        async with gate.call(name, call.scope, context) as ours:
            request = parsed(call.request, await gate.message(ours, messages))
            answer = ParseDict(await call.answer(ours, request), MESSAGES[call.response]())
            return ours.encoded(answer)
        raise AssertionError("an error ends the call")

    return serve


def _infer(gate: AdmissionGate) -> Callable[..., Any]:
    async def serve(messages: Messages, context: Any) -> bytes:
        async with gate.call("ModelInfer", "infer", context) as call:
            data = await gate.message(call, messages)
            answer = await _inferred(call, data, call.arrived, call.id)
            return call.encoded(answer)
        raise AssertionError("an error ends the call")

    return serve


def _stream(gate: AdmissionGate, services: Services) -> Callable[..., Any]:
    """The stream's messages are answered in their order, one at a time. An error of one ends no other."""

    async def serve(messages: Messages, context: Any) -> AsyncIterator[bytes]:
        async with gate.call("ModelStreamInfer", "infer", context, stream=True) as call:
            number = 0
            while (data := await gate.next_message(messages)) is not None:
                with services.lifecycle.in_flight:
                    yield await _streamed(call, data, f"{call.id}.{number}")
                number += 1

    return serve


async def _streamed(call: RpcCall, data: bytes, id: str) -> bytes:
    """The response to one message of a stream."""
    response = MESSAGES["ModelStreamInferResponse"]()
    try:
        call.services.lifecycle.admit()
        response.infer_response.CopyFrom(await _inferred(call, data, time.monotonic(), id))
    except Exception as error:  # the edge of the process: every error becomes an answer
        ours, response.error_message = client_error(call, error)
        call.outcome = ours.kind
        response.infer_response.id = id
    return call.encoded(response)


async def _inferred(call: RpcCall, data: bytes, arrived: float, id: str) -> Any:
    """The ModelInferResponse to one request. Raises what `Inference.answer` and `ask_of` raise."""
    services, holder = call.services, call.caller.tenant
    with services.intake.bodies.shares.loan(holder) as loan:
        loan.cover(2 * len(data))  # for the message, and for the texts in it
        try:

            def read() -> tuple[Asked, str, str]:
                return _read(data, services, loan)

            light = len(data) <= LIGHT_BYTES
            asked, name, version = read() if light else await services.intake.bodies.work(holder, read)
            model = ModelId.parse(name, "model_name")
            ask = ask_of(asked, model, Repository(services, call.caller).record(name), version)
            ask = replace(ask, deadline_ms=call.deadline_ms(ask.deadline_ms, arrived))
            large = len(data) > OFF_LOOP_BYTES
            (result,) = await services.inference.answer([ask], call.caller, arrived, id=id, large=large)
            return await off_loop(values_in([result]) > OFF_LOOP_VALUES, response_of, result, asked, version)
        finally:
            services.intake.bodies.finished(loan)


def _read(data: bytes, services: Services, loan: Loan) -> tuple[Asked, str, str]:
    """A request, and the model and version that it names."""
    request = parsed("ModelInferRequest", data)
    reader = LimitedBodyReader("inputs", most_values(max(services.settings.max_inputs, 16)), loan)
    return asked_of(request, reader), request.model_name, request.model_version


async def _server_live(call: RpcCall, request: Any) -> dict[str, Any]:
    return {"live": True}


async def _server_ready(call: RpcCall, request: Any) -> dict[str, Any]:
    return {"ready": _is(call.services.lifecycle.check_ready)}


async def _server_metadata(call: RpcCall, request: Any) -> dict[str, Any]:
    return server_metadata()


async def _model_ready(call: RpcCall, request: Any) -> dict[str, Any]:
    repository = Repository(call.services, call.caller)
    return {"ready": _is(lambda: repository.check_model_ready(request.name, request.version))}


def _is(check: Callable[[], None]) -> bool:
    """Return whether a check passes, that is, does not raise Unavailable."""
    try:
        check()
    except Unavailable:
        return False
    return True


def _repository_answer(show: Callable[[Repository, str, str], dict[str, Any]]) -> Answer:
    """The answer by a method of `Repository` for the model that the request names."""

    async def answer(call: RpcCall, request: Any) -> dict[str, Any]:
        return await asyncio.to_thread(
            show, Repository(call.services, call.caller), request.name, request.version
        )

    return answer


async def _index(call: RpcCall, request: Any) -> dict[str, Any]:
    repository = Repository(call.services, call.caller)
    return {"models": await asyncio.to_thread(repository.index, ready=request.ready)}


async def _load(call: RpcCall, request: Any) -> dict[str, Any]:
    given = {name: parameter_value(value) for name, value in request.parameters.items()}
    Repository(call.services, call.caller).load(_model_in(request), given)
    return {"model_name": _model_in(request), "isLoaded": True}


async def _unload(call: RpcCall, request: Any) -> dict[str, Any]:
    Repository(call.services, call.caller).unload(_model_in(request))


def _model_in(request: Any) -> str:
    """The model of a request to load or unload. KServe sends it in Triton's first field."""
    return str(request.model_name or request.repository_name)


def _config(repository: Repository, model: str, version: str) -> dict[str, Any]:
    return {"config": repository.config(model, version)}


def _call(name: str, scope: Scope | None, answer: Answer) -> tuple[str, Described]:
    return name, Described(f"{name}Request", f"{name}Response", scope, answer)


DESCRIBED = dict(
    [
        _call("ServerLive", None, _server_live),
        _call("ServerReady", None, _server_ready),
        _call("ServerMetadata", None, _server_metadata),
        _call("ModelReady", "infer", _model_ready),
        _call("ModelMetadata", "infer", _repository_answer(Repository.metadata)),
        _call("ModelConfig", "infer", _repository_answer(_config)),
        _call("ModelStatistics", "infer", _repository_answer(Repository.statistics)),
        _call("RepositoryIndex", "infer", _index),
        _call("RepositoryModelLoad", "infer", _load),
        _call("RepositoryModelUnload", "infer", _unload),
    ]
)
"""The calls that do not infer, by name."""
