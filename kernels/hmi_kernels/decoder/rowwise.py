"""Operations on one row at a time: RMSNorm, rotary positions, SwiGLU, and what a page keeps of a row.

Arguments are int64: addresses, and counts of vectors of 16 numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.decoder import PAGE
from hmi_kernels.encoder import BFLOAT, FLOAT
from hmi_kernels.encoder.pack import PER_WORD
from hmi_kernels.encoder.rowwise import each_vector, place, silu
from hmi_kernels.encoder.vectors import F32, I16, I32, I64, LANES, WORDS, Vectors, vectorised
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


def _key_kept(kind: int, v: Vectors, source: Any, target: Any, count: Any) -> None:
    """source, target, count: a key float32 [16 count] becomes a column of a page: one word every PAGE."""
    b, lanes = v.b, LANES // PER_WORD[kind]

    def body(i: Any) -> None:
        x = v.load(place(v, i, source))
        words = b.bitcast(x if kind == FLOAT else v.bfloats(x), ir.VectorType(I32, lanes))
        at = v.at(target, v.scaled(i, 4 * PAGE * lanes))
        for lane in range(lanes):
            v.store(b.extract_element(words, I32(lane)), v.at(at, 4 * PAGE * lane))

    each_vector(v, count, body)


key_kept_floats, key_kept_bfloats = (vectorised(3)(partial(_key_kept, kind)) for kind in (FLOAT, BFLOAT))


@vectorised(4)
def value_kept(v: Vectors, source: Any, target: Any, second: Any, count: Any) -> None:
    """A value float32 [16 count] becomes the first bfloats of a row of words, whose second ones become 0; or,
    with `second` not 0, the second ones."""
    b = v.b
    sixteen, low = (ir.Constant(WORDS, [x] * LANES) for x in (16, 0xFFFF))

    def body(i: Any) -> None:
        there = place(v, i, target)
        bits = b.zext(b.bitcast(v.bfloats(v.load(place(v, i, source))), ir.VectorType(I16, LANES)), WORDS)
        both = b.or_(b.and_(v.load(there, WORDS), low), b.shl(bits, sixteen))
        v.store(b.select(v.spread(b.icmp_signed("!=", second, I64(0))), both, bits), there)

    each_vector(v, count, body)
