"""LLVM vectors of 16 lanes for kernels that numba's own loops would not turn into such code.

A function of `Vectors` and int64 values describes one kernel; `vectorised` makes it a numba intrinsic, which
is expanded where it is called. LLVM splits 16 lanes into what the processor has: one register of AVX-512, two
of AVX2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from hmi_kernels.encoder.isa import has
from hmi_kernels.jit import ir, with_places

LANES = 16
I64, I32, I16, I8, F32 = (*map(ir.IntType, (64, 32, 16, 8)), ir.FloatType())


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's 16-bit brain float, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BF16 = _BFloat()
FLOATS, WORDS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
BFLOATS, BYTES, SHORTS = (ir.VectorType(kind, LANES) for kind in (BF16, I8, I16))


class Vectors:
    """The operations that a kernel's description may use. Addresses and counts are int64 values, vectors have
    16 lanes."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def at(self, address: Any, offset: Any) -> Any:
        """address + offset bytes."""
        return self.b.add(address, I64(offset) if isinstance(offset, int) else offset)

    def scaled(self, count: Any, size: int) -> Any:
        return self.b.mul(count, I64(size))

    def load(self, address: Any, kind: Any = FLOATS) -> Any:
        return self.b.load(self.b.inttoptr(address, kind.as_pointer()), align=1)

    def store(self, value: Any, address: Any) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=1)

    def prefetch(self, address: Any) -> None:
        """Fetch a line into the second-level cache. A hint, harmless on any address."""
        to = self.b.inttoptr(address, I8.as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), to, I32(0), I32(2), I32(1))

    def const(self, value: float) -> Any:
        return ir.Constant(FLOATS, [float(value)] * LANES)

    def spread(self, scalar: Any, lanes: int = LANES) -> Any:
        """A scalar in all lanes."""
        kind = ir.VectorType(scalar.type, lanes)
        return self.picked(
            self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0)), [0] * lanes
        )

    def picked(self, x: Any, lanes: Sequence[int]) -> Any:
        """These lanes of x."""
        return self.b.shuffle_vector(x, x, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def exchanged(self, x: Any, y: Any, half: int) -> tuple[Any, Any]:
        """x and y, whose blocks of `half` lanes are taken in turn: x's even ones and y's, x's odd and y's."""
        lanes = range(LANES)
        even = [LANES + i - half if i & half else i for i in lanes]
        odd = [LANES + i if i & half else i + half for i in lanes]
        first, second = (self.b.shuffle_vector(x, y, ir.Constant(WORDS, order)) for order in (even, odd))
        return first, second

    def call(self, name: str, result: Any, *args: Any) -> Any:
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.b.call(function, list(args))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x·y + z."""
        return self.call(f"llvm.fma.v{LANES}f32", FLOATS, x, y, z)

    def least(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered("<", x, y), x, y)

    def most(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def total(self, x: Any) -> Any:
        """The sum of the lanes, by halves: the same order everywhere."""
        return self.folded(x, self.b.fadd)

    def greatest(self, x: Any) -> Any:
        return self.folded(x, self.most)

    def folded(self, x: Any, join: Callable[[Any, Any], Any]) -> Any:
        """One scalar of the lanes, joined by halves."""
        half = LANES // 2
        while half:
            turn = [(i + half) % LANES for i in range(LANES)]
            x = join(x, self.b.shuffle_vector(x, x, ir.Constant(WORDS, turn)))
            half //= 2
        return self.b.extract_element(x, I32(0))

    def floats(self, x: Any) -> Any:
        """bf16 or int32 lanes as floats."""
        return self.b.sitofp(x, FLOATS) if x.type == WORDS else self.b.fpext(x, FLOATS)

    def bfloats(self, x: Any) -> Any:
        """Floats as bf16 lanes. LLVM needs an instruction for it."""
        if not has("avx512bf16"):
            self.trap()
            return ir.Constant(BFLOATS, ir.Undefined)
        return self.b.fptrunc(x, BFLOATS)

    def loop(
        self, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]
    ) -> list[Any]:
        """body(i, carried) for i in range(count), count ≥ 1; what is carried at the end."""
        b = self.b
        before, inside = b.block, b.append_basic_block("loop")
        b.branch(inside)
        b.position_at_end(inside)
        i = b.phi(I64)
        i.add_incoming(I64(0), before)
        carried = [b.phi(x.type) for x in start]
        for phi, x in zip(carried, start, strict=True):
            phi.add_incoming(x, before)
        after = list(body(i, carried))
        next_i, end = b.add(i, I64(1)), b.block
        i.add_incoming(next_i, end)
        for phi, x in zip(carried, after, strict=True):
            phi.add_incoming(x, end)
        left = b.append_basic_block("left")
        b.cbranch(b.icmp_signed("<", next_i, count), inside, left)
        b.position_at_end(left)
        return after

    def where(self, condition: Any, values: list[Any], otherwise: Callable[[], list[Any]]) -> list[Any]:
        """Return the values that `otherwise` makes if the condition holds, else `values`."""
        b = self.b
        before, made, end = b.block, b.append_basic_block("made"), b.append_basic_block("end")
        b.cbranch(condition, made, end)
        b.position_at_end(made)
        others = otherwise()
        last = b.block
        b.branch(end)
        b.position_at_end(end)
        out = []
        for value, other in zip(values, others, strict=True):
            phi = b.phi(value.type)
            phi.add_incoming(value, before)
            phi.add_incoming(other, last)
            out.append(phi)
        return out

    def switch(self, value: Any, cases: dict[int, Callable[[], None]]) -> None:
        """Run the case of an int64 value. Nothing runs for a value without a case."""
        b = self.b
        end = b.append_basic_block("end")
        switch = b.switch(value, end)
        for case, body in cases.items():
            block = b.append_basic_block(f"case{case}")
            switch.add_case(I64(case), block)
            b.position_at_end(block)
            body()
            b.branch(end)
        b.position_at_end(end)

    def trap(self) -> None:
        """End the process. It stands for instructions that this processor lacks, in code that never runs on
        it."""
        self.call("llvm.trap", ir.VoidType())

    def exp(self, x: Any) -> Any:
        """e^x for x ≤ 0, to 2e-7 of its value; no less than e^-87."""
        b = self.b
        x = self.most(self.const(-87.0), x)
        whole = self.call(f"llvm.rint.v{LANES}f32", FLOATS, b.fmul(x, self.const(1.4426950408889634)))
        r = self.fma(whole, self.const(-0.693359375), x)
        r = self.fma(whole, self.const(2.12194440e-4), r)
        p = self.polynomial(r, (1.0, 1.0, 0.5, 1.6666665e-1, 4.1665795e-2, 8.3334519e-3, 1.3981999e-3))
        bits = b.shl(
            b.add(b.fptosi(whole, WORDS), ir.Constant(WORDS, [127] * LANES)), ir.Constant(WORDS, [23] * LANES)
        )
        return b.fmul(p, b.bitcast(bits, FLOATS))

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """By Horner's rule, the lowest power first."""
        y = self.const(coefficients[-1])
        for c in coefficients[-2::-1]:
            y = self.fma(y, x, self.const(c))
        return y


def vectorised(arguments: int) -> Callable[[Callable[..., None]], Any]:
    """Return an intrinsic with this many int64 arguments and no result."""

    def made(describe: Callable[..., None]) -> Any:
        def typed(typingctx: Any, *args: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                describe(Vectors(builder), *values)
                return context.get_dummy_value()

            return types.void(*[types.int64] * arguments), codegen

        return intrinsic(with_places(typed, arguments))

    return made
