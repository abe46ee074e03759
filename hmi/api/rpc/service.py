"""The calls of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from hmi.api.handlers.protocols.open_inference import Repository, server_metadata
from hmi.api.http.request_body import LIGHT_BYTES, LimitedBodyReader, most_values
from hmi.api.http.services import Services
from hmi.api.in_thread import OFF_LOOP_BYTES
from hmi.api.rpc.admission import AdmissionGate, Messages, RpcCall, client_error
from hmi.api.rpc.answering import Message, answered, id_of
from hmi.api.rpc.infer import message_of, parsed
from hmi.api.rpc.messages import MESSAGES, PACKAGE, parameter_value
from hmi.api.rpc.passing import answered_elsewhere
from hmi.core import Scope
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
            return call.sends(await _inferred(call, data, call.arrived))
        raise AssertionError("an error ends the call")

    return serve


def _stream(gate: AdmissionGate, services: Services) -> Callable[..., Any]:
    """The stream's messages are answered in their order, one at a time. An error of one ends no other."""

    async def serve(messages: Messages, context: Any) -> AsyncIterator[bytes]:
        async with gate.call("ModelStreamInfer", "infer", context, stream=True) as call:
            number = 0
            while (data := await gate.next_message(messages)) is not None:
                with services.lifecycle.in_flight:
                    yield await _streamed(call, data, number)
                number += 1

    return serve


async def _streamed(call: RpcCall, data: bytes, number: int) -> bytes:
    """The response to one message of a stream, by its number in it."""
    response = MESSAGES["ModelStreamInferResponse"]()
    try:
        call.services.lifecycle.admit()
        response.infer_response = await _inferred(call, data, time.monotonic(), number)
    except Exception as error:  # the edge of the process: every error becomes an answer
        ours, response.error_message = client_error(call, error)
        call.outcome = ours.kind
        response.infer_response = MESSAGES["ModelInferResponse"](
            id=id_of(call.id, number)
        ).SerializeToString()
    return call.encoded(response)


async def _inferred(call: RpcCall, data: bytes, arrived: float, number: int | None = None) -> bytes:
    """The bytes of the ModelInferResponse to one request. number: of the message in its stream. Raises as
    `message_of` and `answered`."""
    services, holder = call.services, call.caller.tenant
    with services.intake.bodies.shares.loan(holder) as loan:
        loan.cover(2 * len(data))  # for the message, and for the texts in it
        try:
            if (found := await answered_elsewhere(call, data, number)) is not None:
                return found
            reader = LimitedBodyReader("inputs", most_values(max(services.settings.max_inputs, 16)), loan)

            def read() -> Message:
                return message_of(data, reader)

            light = len(data) <= LIGHT_BYTES
            message = read() if light else await services.intake.bodies.work(holder, read)
            id, large = id_of(call.id, number), len(data) > OFF_LOOP_BYTES
            return await answered(services, call.caller, message, arrived, call.ends(), id=id, large=large)
        finally:
            services.intake.bodies.finished(loan)


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
