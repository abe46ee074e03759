"""numba, with types that mypy can follow, and the three machine instructions the kernels need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ir: Any = cast(Any, cgutils).ir  # llvmlite's, through numba: one dependency
carray: Any = cast(Any, numba).carray

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """A kernel: one thread, the GIL released, the machine code cached beside the source.

    fastmath stays off: sums are then the same bits in every batch and equal to the numpy reference.
    """
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """A helper of a kernel that the compiler must inline."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", forceinline=True)(function))


def _prefetch(typingctx: Any, addr: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        declared = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        known = builder.module.globals.get("llvm.prefetch.p0")
        function = known or ir.Function(builder.module, declared, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], pointer), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _pointer(typingctx: Any, addr: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def _as_float(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


prefetch: Any = intrinsic(_prefetch)  # int64 address -> nothing; a hint, harmless on any address
pointer: Any = intrinsic(_pointer)  # int64 address -> void*, for numba.carray
as_float: Any = intrinsic(_as_float)  # the float32 with these 32 bits
