"""Canaries: the private parts of other libraries that HMI uses, touched as HMI touches them.

A library may change such a part in any release. The part's test then fails, and says which part of which
version changed, which file uses it, and what users would notice. The functions import the libraries' insides:
a part that is gone fails its own test alone. tests/hmi/service/test_words.py does the same for pydantic's
errors.
"""

from __future__ import annotations

import ast
import asyncio
import codecs
import ctypes
import inspect
import re
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hmi.labs.tls_lab import Authority

REPO = Path(__file__).resolve().parents[1]
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@dataclass(frozen=True)
class Part:
    """A private part of a library."""

    library: str
    names: str  # as they stand in the code
    files: str
    then: str  # what users notice if it changes
    touch: Callable[[Path], object]  # uses it as HMI does, in an empty folder; raises if it has changed


def aiohttp_connection(folder: Path) -> None:
    from aiohttp import web

    calls = []

    class Watched(web.RequestHandler):
        __slots__ = ()

        async def finish_response(self, *args: Any) -> Any:
            calls.append("finish_response")
            return await super().finish_response(*args)

        def handle_error(self, *args: Any, **options: Any) -> Any:
            calls.append("handle_error")
            return super().handle_error(*args, **options)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response()

    async def ask(sent: bytes) -> None:
        loop, server = asyncio.get_running_loop(), web.Server(answer)

        def made() -> web.RequestHandler:
            settings: Any = {"auto_decompress": False, "keepalive_timeout": 9.0, "lingering_time": 0.0}
            return Watched(server, loop=loop, access_log=None, read_bufsize=1 << 14, **settings)

        listening = await loop.create_server(made, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.")
        if sent == REQUEST:
            task = server.connections[0]._task_handler
            assert isinstance(task, asyncio.Task)
            assert not task.done()
            server.pre_shutdown()
            await asyncio.wait({task}, timeout=5)
            assert task.done(), "pre_shutdown no longer ends the task of an idle connection"
        writer.close()
        listening.close()
        await server.shutdown(0)

    asyncio.run(ask(REQUEST))
    assert calls == ["finish_response"]
    asyncio.run(ask(b"no HTTP\r\n\r\n"))
    assert "handle_error" in calls


def ssl_transport(folder: Path) -> None:
    async def connect() -> None:
        authority = Authority.create(folder)
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        server.load_cert_chain(*authority.issue())
        client.load_verify_locations(authority.file)
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server)
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname(), ssl=client)
        wire: Any = writer.transport
        assert wire._ssl_protocol._transport.get_write_buffer_size() == 0
        wire.abort()
        listening.close()

    asyncio.run(connect())


def certificate_decoder(folder: Path) -> None:
    certificate, _ = Authority.create(folder).issue()
    decode = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009
    assert ssl.cert_time_to_seconds(decode(str(certificate))["notAfter"]) > 0


def text_encodings(folder: Path) -> None:
    flags = [codecs.lookup(name)._is_text_encoding for name in ("utf-8", "zip")]  # type: ignore[attr-defined]
    assert flags == [True, False]


def unwrapped_optimisers(folder: Path) -> None:
    of, names = torch.optim.Optimizer, ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = [
        inspect.unwrap(each) for each in (*(getattr(of, name) for name in names), torch.optim.AdamW.step)
    ]
    assert all(next(iter(inspect.signature(method).parameters)) == "self" for method in methods)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.full((3,), 0.5)
    torch.optim.AdamW([weights[0]], lr=0.1).step()
    torch.no_grad()(methods[-1])(torch.optim.AdamW([weights[1]], lr=0.1))
    assert torch.equal(*weights)


def average(folder: Path) -> None:
    held = [torch.zeros(2)]
    torch._foreach_lerp_(held, [torch.ones(2)], 0.25)
    assert held[0].tolist() == [0.25, 0.25]


def softmax_gradient(folder: Path) -> None:
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    y, given = x.softmax(-1), torch.tensor([[1.0, 0.0]])
    (wanted,) = torch.autograd.grad(y, x, given)
    assert torch.allclose(torch._softmax_backward_data(given, y.detach(), -1, torch.float32), wanted)


def reordered_weights(folder: Path) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    weight, bias, x = torch.randn(16, 8), torch.randn(16), torch.randn(4, 8)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2048)
    y = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    assert torch.allclose(y, x @ weight.T + bias, atol=1e-4)


def capture_ends(folder: Path) -> None:
    assert callable(torch._C._cuda_endAllocateToPool)
    assert callable(torch._C._cuda_releasePool)


def dispatch(folder: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    seen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            schema = func._schema
            written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
            seen.append((func.overloadpacket.__name__, schema.is_mutable, written, len(schema.returns)))
            return func(*tree_map(lambda value: value, tuple(args)), **(kwargs or {}))

    with Seen():
        torch.ones(2).add_(1)
    assert seen == [("ones", False, [], 1), ("add_", True, ["self"], 1)]
    assert tree_leaves([(1, {"a": 2})]) == [1, 2]


def kernel_cache(folder: Path) -> None:
    import numba

    cache: Any = numba.njit(cache=True)(capture_ends)._cache
    assert "_cache_file" in vars(cache)
    made = type(cache._cache_file)(cache._cache_path, f"{cache._impl.filename_base}.stamp", "stamp")
    assert made._index_path.endswith(".stamp.nbi")


def machine_code(folder: Path) -> None:
    import numba
    from numba import types
    from numba.core import cgutils
    from numba.core.registry import cpu_target
    from numba.extending import intrinsic

    ir: Any = cgutils.ir

    def doubled(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.add(args[0], args[0])

        return types.int64(types.int64), codegen

    double = intrinsic(doubled)
    kernel: Any = numba.njit(nogil=True)(lambda x: double(x) + 1)
    kernel.compile((types.int64,))
    kernel.disable_compile()
    (found,) = kernel.overloads.values()
    address = found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(20) == 41
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    assert re.match(r"[+-][\w.-]+(,[+-][\w.-]+)*$", features)
    assert str(cgutils.voidptr_t) == "i8*"

    class Named(ir.Type):  # type: ignore[misc,name-defined]
        def _to_string(self) -> str:
            return "bfloat"

    assert str(ir.VectorType(Named(), 16)) == "<16 x bfloat>"


def metric_labels(folder: Path) -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    counter = Counter("a", "b", ["tenant"], registry=registry)
    assert list(registry._collector_to_names) == [counter]
    assert list(counter._labelnames) == ["tenant"]


PARTS = (
    Part(
        "aiohttp",
        "RequestHandler, _task_handler",
        "hmi/api/edge/connection.py, hmi/api/edge/drain.py, hmi/api/edge/listener.py",
        "malformed requests get answers of another form, idle connections do not make room for others, or a "
        "server that stops waits for idle clients or cuts busy ones",
        aiohttp_connection,
    ),
    Part(
        "Python",
        "_ssl_protocol, _transport (asyncio)",
        "hmi/api/edge/connection.py",
        "under TLS, a client that does not read keeps its connection, or loses the end of its answer",
        ssl_transport,
    ),
    Part(
        "Python",
        "_ssl, _test_decode_cert",
        "hmi/doctor/machine.py",
        "`hmi doctor` cannot say when a certificate expires",
        certificate_decoder,
    ),
    Part(
        "Python",
        "_is_text_encoding (codecs)",
        "hmi/training/data/reading.py",
        "a file's --encoding is refused, or one that is no encoding is accepted",
        text_encodings,
    ),
    Part(
        "torch",
        "the functions that torch.optim wraps",
        "hmi/training/fit/optimisers.py",
        "trainings fail, or each takes seconds longer to start",
        unwrapped_optimisers,
    ),
    Part(
        "torch",
        "_foreach_lerp_",
        "hmi/training/fit/learner.py",
        "trainings fail at their first step",
        average,
    ),
    Part(
        "torch",
        "_softmax_backward_data",
        "hmi/training/fit/quick_layers.py",
        "trainings fail, or learn from wrong gradients",
        softmax_gradient,
    ),
    Part(
        "torch",
        "_is_avx512_bf16_supported",
        "hmi/training/fit/precision.py",
        "trainings fail, or are slow on processors with bf16",
        lambda _: bool(torch.cpu._is_avx512_bf16_supported()),
    ),
    Part(
        "torch",
        "mkldnn, _reorder_linear_weight, _linear_pointwise",
        "hmi/model/network/prepacked.py, hmi/training/fit/quick_layers.py",
        "answers and trainings take about twice as long, or fail",
        reordered_weights,
    ),
    Part(
        "torch",
        "_C, _cuda_endAllocateToPool, _cuda_releasePool",
        "hmi/execution/cuda/torch_device.py",
        "after a CUDA graph could not be captured, the GPU's memory is not given back",
        capture_ends,
    ),
    Part(
        "torch",
        "torch.utils._python_dispatch, torch.utils._pytree, _schema",
        "hmi/execution/cuda/twin.py",
        "nothing on a server: the tests of CUDA graphs without a GPU fail",
        dispatch,
    ),
    Part(
        "numba",
        "_cache, _cache_path, _cache_file, _impl",
        "kernels/hmi_kernels/jit.py",
        "the server does not start, or after an upgrade it runs machine code of the earlier release",
        kernel_cache,
    ),
    Part(
        "numba",
        "numba.core.cgutils, numba.core.registry, _to_string (llvmlite)",
        "kernels/hmi_kernels/jit.py, kernels/hmi_kernels/encoder/isa.py, "
        "kernels/hmi_kernels/encoder/vectors.py",
        "the server does not start",
        machine_code,
    ),
    Part(
        "prometheus-client",
        "_collector_to_names, _labelnames",
        "hmi/cli/machine/reference.py",
        "nothing on a server: `hmi reference` cannot write the page of metrics",
        metric_labels,
    ),
)


def check(part: Part, folder: Path) -> None:
    """Touch a part; if it has changed, fail and say in words what that means."""
    of = sys.version.split()[0] if part.library == "Python" else version(part.library)
    try:
        part.touch(folder)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        pytest.fail(
            f"{part.library} {of} changed a private part, {part.names}, which {part.files} uses. "
            f"Users would notice: {part.then}. ({why})",
            pytrace=False,
        )


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.library}-{part.touch.__name__}")
def test_a_private_part_is_as_it_was(part: Part, tmp_path: Path) -> None:
    check(part, tmp_path)


def test_what_changed_is_said_in_words(tmp_path: Path) -> None:
    gone = Part("torch", "_gone", "hmi/x.py", "trainings fail", lambda _: torch._gone)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception) as caught:
        check(gone, tmp_path)
    assert f"torch {version('torch')} changed a private part, _gone, which hmi/x.py uses" in str(caught.value)
    assert "Users would notice: trainings fail. (AttributeError: " in str(caught.value)


OPEN = {"_replace", "_exit", "_Hash"}
"""Documented (`NamedTuple._replace`, `os._exit`), or for type checkers alone (`hashlib._Hash`)."""


def foreign() -> dict[str, set[str]]:
    """The private names that the code uses but nowhere binds, each with the files that use it."""
    bound, used = set[str](), dict[str, set[str]]()
    for path in (path for top in ("hmi", "plot_store", "kernels") for path in (REPO / top).rglob("*.py")):
        if "bench" in path.relative_to(REPO).parts:  # a benchmark that fails harms no user
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                bound.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.Attribute):
                named = [node.attr]
            elif isinstance(node, ast.ImportFrom):
                package = [alias.name for alias in node.names] if node.module == "numba.core" else [""]
                named = [f"{node.module}.{name}".rstrip(".") for name in package]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
                named = [str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)]
            for name in named:
                if re.match(r"_[a-zA-Z]|.*\._|numba\.core", name):
                    used.setdefault(name, set()).add(str(path.relative_to(REPO)))
    return {name: files for name, files in used.items() if name not in bound | OPEN}


def test_every_private_part_has_a_canary() -> None:
    found = foreign()
    assert {"_task_handler", "_foreach_lerp_", "numba.core.registry", "torch.utils._pytree"} <= found.keys()
    for name, files in found.items():
        part = next((p for p in PARTS if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", p.names)), None)
        assert part is not None, f"{name}, in {', '.join(sorted(files))}: add it to PARTS"
        assert all(file in part.files for file in files), (name, files, part.files)


def test_a_library_whose_private_parts_are_used_has_an_upper_bound() -> None:
    text = "".join(
        (REPO / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "plot_store/pyproject.toml")
    )
    for library in {part.library for part in PARTS} - {"Python"} | {"pydantic"}:
        bound = re.search(rf'"{library}>=[\d.]+,<(\d+)"', text)
        assert bound is not None, f"{library}: give an upper bound in pyproject.toml"
        assert int(version(library).split(".")[0]) < int(bound[1])
