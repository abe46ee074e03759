"""Operations on one row at a time: RMSNorm, rotary positions, SwiGLU, and what a page keeps of a row.

Arguments are int64: addresses, and counts of vectors of 16 numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.decoder import PAGE
from hmi_kernels.encoder.rowwise import each_vector, place, silu
from hmi_kernels.encoder.vectors import F32, FLOATS, I16, I32, LANES, Vectors, vectorised
from hmi_kernels.jit import ir


@vectorised(5)
def rms_normed(v: Vectors, x: Any, gain: Any, y: Any, eps: Any, count: Any) -> None:
    """y = x / sqrt(the mean of x² + eps) · gain, float32; eps: the bits of a float32. y may be x."""
    b = v.b

    def square(i: Any, carried: list[Any]) -> list[Any]:
        z = v.load(place(v, i, x))
        return [v.fma(z, z, carried[0])]

    def scaled(i: Any) -> None:
        z = b.fmul(v.load(place(v, i, x)), scale)
        v.store(b.fmul(z, v.load(place(v, i, gain))), place(v, i, y))

    (squares,) = v.loop(count, [v.const(0.0)], square)
    mean = b.fdiv(v.total(squares), b.sitofp(v.scaled(count, LANES), F32))
    root = v.call("llvm.sqrt.f32", F32, b.fadd(mean, b.bitcast(b.trunc(eps, I32), F32)))
    scale = v.spread(b.fdiv(F32(1.0), root))
    each_vector(v, count, scaled)


@vectorised(3)
def turned(v: Vectors, x: Any, turn: Any, count: Any) -> None:
    """Turn numbers i and i + head / 2 of a head by an angle each, in place: float32 [2, 16 count].

    turn: the cosines of the angles, then their sines.
    """
    b = v.b

    def body(i: Any) -> None:
        low, high = place(v, i, x), place(v, b.add(i, count), x)
        cosine, sine = v.load(place(v, i, turn)), v.load(place(v, b.add(i, count), turn))
        first, second = v.load(low), v.load(high)
        v.store(b.fsub(b.fmul(first, cosine), b.fmul(second, sine)), low)
        v.store(b.fadd(b.fmul(second, cosine), b.fmul(first, sine)), high)

    each_vector(v, count, body)


def _swiglu(size: int, v: Vectors, gate: Any, value: Any, target: Any, count: Any) -> None:
    """gate, value, target, count: target = silu(gate) · value, of numbers of `size` bytes; the sources are
    float32."""

    def body(i: Any) -> None:
        y = v.b.fmul(silu(v, v.load(place(v, i, gate))), v.load(place(v, i, value)))
        v.store(y if size == 4 else v.bfloats(y), place(v, i, target, size))

    each_vector(v, count, body)


swiglu_floats, swiglu_bfloats = (vectorised(4)(partial(_swiglu, size)) for size in (4, 2))


def _key_kept(size: int, v: Vectors, source: Any, target: Any, count: Any) -> None:
    """source, target, count: a key float32 [16 count] becomes a column of a page: one number every PAGE."""
    b = v.b

    def body(i: Any) -> None:
        x = v.load(place(v, i, source))
        if size == 2:
            x = b.bitcast(v.bfloats(x), ir.VectorType(I16, LANES))
        at = place(v, i, target, size * PAGE)
        for lane in range(LANES):
            v.store(b.extract_element(x, I32(lane)), v.at(at, size * PAGE * lane))

    each_vector(v, count, body)


key_kept_floats, key_kept_bfloats = (vectorised(3)(partial(_key_kept, size)) for size in (4, 2))


def loaded(v: Vectors, address: Any, size: int) -> Any:
    """16 numbers of `size` bytes, float32 or bfloat16, as float32."""
    if size == 4:
        return v.load(address)
    bits = v.b.zext(v.load(address, ir.VectorType(I16, LANES)), ir.VectorType(I32, LANES))
    return v.b.bitcast(v.b.shl(bits, ir.Constant(bits.type, [16] * LANES)), FLOATS)
