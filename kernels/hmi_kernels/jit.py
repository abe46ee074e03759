"""numba with types for mypy, and intrinsics for the few machine instructions that the kernels need."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

ir: Any = cast(Any, cgutils).ir  # llvmlite.ir, without a dependency on llvmlite
carray: Any = cast(Any, numba).carray

F = TypeVar("F", bound=Callable[..., Any])


def _stamp() -> str:
    """A hash of all Python sources of hmi_kernels."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


STAMP = _stamp()


_MADE: list[tuple[Any, str]] = []
"""The dispatchers made so far, and where each one's cached files lie, without their endings."""


def keep(entry: str) -> None:
    """Record that all kernels of `entry` are compiled for this processor: call it after the last of them.

    The record names the cached files of everything that this process has compiled or loaded so far.
    """
    places = sorted({place for dispatcher, place in _MADE if dispatcher.overloads})
    files = sorted(path for place in places for path in glob.glob(f"{glob.escape(place)}.*nb[ic]"))
    record = _record(entry)
    aside = record.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps(files), encoding="utf-8")
    aside.replace(record)


@contextmanager
def alone(entry: str) -> Iterator[None]:
    """Context manager: no other process is in such a block for this entry. Waits for its turn."""
    with _record(entry).with_suffix(".lock").open("w") as lock:  # closing the file frees the lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept(entry: str) -> bool:
    """Return whether machine code of the sources as they are now lies in numba's cache for all of `entry`.

    True only after a `keep` for this processor, and as long as no file that it named is lost.
    """
    try:
        files = json.loads(_record(entry).read_text(encoding="utf-8"))
        return bool(files) and all(map(os.path.exists, files))
    except (OSError, ValueError):
        return False


def _record(entry: str) -> Path:
    """The file that `keep` writes, in the cache's folder of this module."""
    codegen: Any = cpu_target.target_context.codegen()
    machine = f"{numba.__version__} {sys.version} {codegen.magic_tuple()}"
    digest = hashlib.blake2b(machine.encode(), digest_size=8).hexdigest()
    return Path(_MADE[0][1]).parent / f"{entry}.{STAMP[:16]}.{digest}.nbk"


def prepare() -> None:
    """Do once what numba does before its first kernel of a process, some .3 s. Forks inherit it."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _jit(function: F, **options: Any) -> F:
    dispatcher: Any = numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    # numba's cache compares only the date of the function's own file, so after a change of a helper in
    # another file it would run old machine code. It also writes its index before the code, under a name that
    # older code may have, so of two processes that start after an upgrade one could run the old code. Hence
    # each state of the sources gets cache files of its own. numba has no public option for this.
    cache = dispatcher._cache
    base = f"{cache._impl.filename_base}.{STAMP[:16]}"
    cache._cache_file = type(cache._cache_file)(cache._cache_path, base, STAMP)
    _MADE.append((dispatcher, os.path.join(cache._cache_path, base)))
    return cast(F, dispatcher)


def compiled(function: F) -> F:
    """Compile a kernel that releases the GIL and runs on one thread; its machine code is
    cached beside the source.

    fastmath is off, so that sums have the same bits in every batch and equal the numpy reference.
    """
    return _jit(function)


def reassociated(function: F) -> F:
    """As `compiled`, but a sum's terms may be added in another order, as vector instructions do.

    The order depends on the number of terms alone, so a sum still has the same bits in every batch.
    """
    return _jit(function, fastmath={"contract", "nsz", "reassoc"})


def inlined(function: F) -> F:
    """Compile a helper that is always inlined into kernels. It cannot be called from Python."""
    return _jit(function, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def whole(function: F) -> F:
    """A kernel of int64 arguments only, addresses and numbers, compiled as soon as it is defined.

    Without the fixed types numba would compile it again for each constant that it is called with.
    """
    dispatcher: Any = _jit(function)
    dispatcher.compile((types.int64,) * function.__code__.co_argcount)
    dispatcher.disable_compile()
    return cast(F, dispatcher)


def address_of(kernel: Any) -> int:
    """Return the address of a `whole` kernel's machine code, for `calling`."""
    (found,) = kernel.overloads.values()
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name))


def calling(arguments: int) -> Any:
    """An intrinsic that calls a `whole` kernel without a result: (its address, its arguments).

    A kernel that is called by name is compiled into its caller once more, and again into the caller's
    callers.
    """

    def typed(typingctx: Any, address: Any, *args: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * arguments)
            builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
            return context.get_dummy_value()

        return types.void(*[types.int64] * (arguments + 1)), codegen

    return intrinsic(with_places(typed, arguments + 1))


def with_places(typed: Any, arguments: int) -> Any:
    """Give a typing function of *args this many named parameters, since numba looks for names."""
    names = ["typingctx", *(f"a{i}" for i in range(arguments))]
    places = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = Signature(places)
    return typed


def _load(result: Any, width: Any) -> Any:
    """An intrinsic that reads one number at an int64 address."""

    def typed(typingctx: Any, addr: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], width.as_pointer()), align=1)

        return result(types.int64), codegen

    return intrinsic(typed)


def _store(kind: Any, width: Any) -> Any:
    """An intrinsic that writes one number at an int64 address."""

    def typed(typingctx: Any, addr: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return intrinsic(typed)


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


def _as_bits(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


def _match8(typingctx: Any, addr: Any, mark: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector, eight, word = ir.VectorType(ir.IntType(64), 8), ir.IntType(8), ir.IntType(64)
        slots = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=64)
        lone = builder.insert_element(ir.Constant(vector, ir.Undefined), args[1], ir.IntType(32)(0))
        marks = builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))
        same = builder.icmp_unsigned("==", builder.lshr(slots, ir.Constant(vector, [32] * 8)), marks)
        free = builder.icmp_unsigned("==", slots, ir.Constant(vector, [(1 << 64) - 1] * 8))
        low = builder.zext(builder.bitcast(same, eight), word)
        return builder.or_(low, builder.shl(builder.zext(builder.bitcast(free, eight), word), word(8)))

    return types.uint64(types.int64, types.uint64), codegen


def _sieve4(typingctx: Any, addr: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), 4)
        words = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=8)
        lone = builder.insert_element(ir.Constant(vector, ir.Undefined), args[1], ir.IntType(32)(0))
        wanted = builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), 4), [0] * 4))
        full = builder.icmp_unsigned("==", builder.and_(words, wanted), wanted)
        return builder.zext(builder.bitcast(full, ir.IntType(4)), ir.IntType(64))

    return types.uint64(types.int64, types.uint64), codegen


def _folded(typingctx: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, wide = ir.IntType(64), ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return builder.xor(high, builder.trunc(product, word))

    return types.uint64(types.uint64, types.uint64), codegen


def _lowest_bit(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.int64(types.uint64), codegen


def _sum_block(typingctx: Any, out: Any, vectors: Any, scales: Any) -> Any:
    wide, floats, small = 64, ir.VectorType(ir.FloatType(), 64), ir.VectorType(ir.IntType(8), 64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def scaled(term: int) -> Any:
            at = builder.inttoptr(builder.extract_value(args[1], term), small.as_pointer())
            lone = builder.insert_element(
                ir.Constant(floats, ir.Undefined), builder.extract_value(args[2], term), ir.IntType(32)(0)
            )
            scale = builder.shuffle_vector(
                lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), wide), [0] * wide)
            )
            product = builder.fmul(builder.sitofp(builder.load(at, align=1), floats), scale)
            halved = vectors.count == 4 and term < 2
            return builder.fmul(product, ir.Constant(floats, [0.5] * wide)) if halved else product

        total = scaled(0)
        for term in range(1, vectors.count):
            total = builder.fadd(total, scaled(term))
        builder.store(total, builder.inttoptr(args[0], floats.as_pointer()), align=4)
        return context.get_dummy_value()

    count = vectors.count
    tuple_of: Any = types.UniTuple
    return types.void(types.int64, tuple_of(types.int64, count), tuple_of(types.float32, count)), codegen


prefetch: Any = intrinsic(_prefetch)  # int64 address -> nothing; a hint, harmless on any address
pointer: Any = intrinsic(_pointer)  # int64 address -> void*, for numba.carray
as_float: Any = intrinsic(_as_float)  # the float32 with these 32 bits
as_bits: Any = intrinsic(_as_bits)  # the 32 bits of a float32
load_i64: Any = _load(types.int64, ir.IntType(64))
load_u64: Any = _load(types.uint64, ir.IntType(64))
load_u8: Any = _load(types.uint8, ir.IntType(8))
load_u32: Any = _load(types.uint32, ir.IntType(32))
load_i32: Any = _load(types.int32, ir.IntType(32))
load_f32: Any = _load(types.float32, ir.FloatType())
store_i64: Any = _store(types.int64, ir.IntType(64))
store_u32: Any = _store(types.uint32, ir.IntType(32))
store_i16: Any = _store(types.int16, ir.IntType(16))
store_i8: Any = _store(types.int8, ir.IntType(8))
store_u8: Any = _store(types.uint8, ir.IntType(8))
# (address in a cache line of eight index slots, fingerprint): bit i says that slot i has the fingerprint, bit
# 8 + i that it is free.
match8: Any = intrinsic(_match8)
sieve4: Any = intrinsic(_sieve4)  # (address of four words, bits): bit i says that word i has all these bits
folded: Any = intrinsic(_folded)  # (two words): the high half of their product xor its low half
lowest_bit: Any = intrinsic(_lowest_bit)  # the index of the lowest bit that is set, 64 for none
# (address of 64 float32, addresses of 64 int8 each, their scales): writes the sum of the numbers times their
# scales, added from left to right. Of four terms the first two are also halved, since they are a mean. It
# uses LLVM's vectors, because a loop would be compiled with a test for overlap in front of it.
sum_block: Any = intrinsic(_sum_block)


@inlined
def get(record: Any, field: Any) -> Any:
    """Read a field of a record, which is a sequence of int64 words at an address.

    Records are plain memory because numba counts references to arrays atomically at each call.
    """
    return load_i64(record + 8 * field)


@inlined
def put(record: Any, field: Any, value: Any) -> Any:
    """Write a field of a record."""
    store_i64(record + 8 * field, value)
