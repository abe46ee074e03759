"""Operations on one row at a time: casts, GELU, LayerNorm, softmax, int8.

Arguments are int64: addresses, and counts of vectors of 16 numbers.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from hmi_kernels.encoder import LENGTH, SHORT
from hmi_kernels.encoder.vectors import (
    BFLOATS,
    BYTES,
    F32,
    FLOATS,
    I32,
    I64,
    LANES,
    SHORTS,
    WORDS,
    Vectors,
    vectorised,
)
from hmi_kernels.jit import ir

_INFINITY = float("inf")


def place(v: Vectors, i: Any, address: Any, size: int = 4) -> Any:
    """The address of vector i of numbers of this size."""
    return v.at(address, v.scaled(i, LANES * size))


def each_vector(v: Vectors, count: Any, body: Any) -> None:
    """body(i) for each vector."""

    def carried(i: Any, _: list[Any]) -> list[Any]:
        body(i)
        return []

    v.loop(count, [], carried)


def _phi(bound: float, degree: int) -> tuple[float, tuple[float, ...]]:
    """A polynomial for the normal distribution function: (Φ(x) - 1/2) / x in t = 2 (x / bound)² - 1.

    Least squares, weighted so that the error of x Φ(x) is even. Beyond ±bound Φ is taken as constant.
    """
    t = np.cos(np.pi * (np.arange(4000) + 0.5) / 4000)
    square = (t + 1) / 2 * bound * bound
    x = np.sqrt(square)
    erf = np.array([math.erf(z / math.sqrt(2)) for z in x])
    fit = chebyshev.chebfit(t, 0.5 * erf / x, degree, w=square + 0.05)
    return bound, tuple(float(c) for c in chebyshev.cheb2poly(fit))


_COARSE = _phi(4.5, 9)
"""GELU to 4e-5: far below the spacing of bfloat16."""
_PRECISE = _phi(5.25, 14)
"""GELU to 7e-7."""


def _gelu(v: Vectors, x: Any, fit: tuple[float, tuple[float, ...]]) -> Any:
    bound, coefficients = fit
    x = v.most(v.const(-bound), x)
    near = v.least(x, v.const(bound))
    t = v.fma(v.b.fmul(near, near), v.const(2 / bound**2), v.const(-1.0))
    half = v.b.fmul(near, v.polynomial(t, coefficients))
    return v.b.fmul(x, v.b.fadd(half, v.const(0.5)))


@vectorised(3)
def gelu_floats(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """target = GELU(source), both float32."""
    each_vector(
        v, count, lambda i: v.store(_gelu(v, v.load(place(v, i, source)), _PRECISE), place(v, i, target))
    )


@vectorised(3)
def gelu_bfloats(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """target bfloat16 = GELU(source float32)."""

    def body(i: Any) -> None:
        y = _gelu(v, v.load(place(v, i, source)), _COARSE)
        v.store(v.bfloats(y), place(v, i, target, 2))

    each_vector(v, count, body)


@vectorised(3)
def to_bfloats(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """target bfloat16 = source float32, to the nearest."""
    each_vector(v, count, lambda i: v.store(v.bfloats(v.load(place(v, i, source))), place(v, i, target, 2)))


@vectorised(3)
def copied(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """target = source, float32."""
    each_vector(v, count, lambda i: v.store(v.load(place(v, i, source)), place(v, i, target)))


@vectorised(3)
def added(v: Vectors, source: Any, target: Any, count: Any) -> None:
    """target += source, float32."""

    def body(i: Any) -> None:
        at = place(v, i, target)
        v.store(v.b.fadd(v.load(at), v.load(place(v, i, source))), at)

    each_vector(v, count, body)


def silu(v: Vectors, z: Any) -> Any:
    """z / (1 + e^-z)."""
    b = v.b
    away = v.exp(b.fsub(v.const(0.0), v.call("llvm.fabs.v16f32", FLOATS, z)))  # e^-|z|
    share = b.select(b.fcmp_ordered(">=", z, v.const(0.0)), v.const(1.0), away)
    return b.fdiv(b.fmul(z, share), b.fadd(v.const(1.0), away))


@vectorised(4)
def activated(v: Vectors, x: Any, bias: Any, activation: Any, count: Any) -> None:
    """x = activation(x + bias), float32; the activation is one of `change.RELU` (1) and `change.SILU` (2)."""
    b = v.b
    smooth = v.spread(b.icmp_signed("==", activation, I64(2)))

    def body(i: Any) -> None:
        z = b.fadd(v.load(place(v, i, x)), v.load(place(v, i, bias)))
        v.store(b.select(smooth, silu(v, z), v.most(v.const(0.0), z)), place(v, i, x))

    each_vector(v, count, body)


@vectorised(7)
def normed(v: Vectors, x: Any, residual: Any, gain: Any, bias: Any, y: Any, eps: Any, count: Any) -> None:
    """y = LayerNorm(x + residual) of one row, float32; eps: the bits of a float32. y may be x."""
    b = v.b

    def first(i: Any, carried: list[Any]) -> list[Any]:
        z = b.fadd(v.load(place(v, i, x)), v.load(place(v, i, residual)))
        v.store(z, place(v, i, y))
        return [b.fadd(carried[0], z)]

    def second(i: Any, carried: list[Any]) -> list[Any]:
        z = b.fsub(v.load(place(v, i, y)), mean)
        return [v.fma(z, z, carried[0])]

    def third(i: Any) -> None:
        z = b.fmul(b.fsub(v.load(place(v, i, y)), mean), scale)
        v.store(v.fma(z, v.load(place(v, i, gain)), v.load(place(v, i, bias))), place(v, i, y))

    size = b.sitofp(v.scaled(count, LANES), F32)
    (total,) = v.loop(count, [v.const(0.0)], first)
    mean = v.spread(b.fdiv(v.total(total), size))
    (squares,) = v.loop(count, [v.const(0.0)], second)
    variance = b.fadd(b.fdiv(v.total(squares), size), b.bitcast(b.trunc(eps, I32), F32))
    scale = v.spread(b.fdiv(F32(1.0), _root(v, variance)))
    each_vector(v, count, third)


@vectorised(5)
def softmax(v: Vectors, scores: Any, keys: Any, factor: Any, plus: Any, more: Any) -> None:
    """The softmax of factor · scores + plus + more over the first `keys` numbers of a row, in place.

    float32; factor: its bits. All three rows are read up to the next multiple of 16, where the result is 0.
    """
    b = v.b
    count = b.sdiv(b.add(keys, I64(LANES - 1)), I64(LANES))
    scale = v.spread(b.bitcast(b.trunc(factor, I32), F32))
    lanes = ir.Constant(WORDS, list(range(LANES)))

    def first(i: Any, carried: list[Any]) -> list[Any]:
        inside = b.icmp_signed("<", lanes, v.spread(b.trunc(b.sub(keys, v.scaled(i, LANES)), I32)))
        z = v.fma(v.load(place(v, i, scores)), scale, v.load(place(v, i, plus)))
        z = b.select(inside, b.fadd(z, v.load(place(v, i, more))), v.const(-_INFINITY))
        v.store(z, place(v, i, scores))
        return [v.most(carried[0], z)]

    def second(i: Any, carried: list[Any]) -> list[Any]:
        z = v.load(place(v, i, scores))
        inside = b.fcmp_unordered(">", z, v.const(-_INFINITY))  # not-a-number stays
        e = b.select(inside, v.exp(b.fsub(z, highest)), v.const(0.0))
        v.store(e, place(v, i, scores))
        return [b.fadd(carried[0], e)]

    (most,) = v.loop(count, [v.const(-_INFINITY)], first)
    highest = v.spread(v.greatest(most))
    (total,) = v.loop(count, [v.const(0.0)], second)
    part = v.spread(b.fdiv(F32(1.0), v.total(total)))
    each_vector(v, count, lambda i: v.store(b.fmul(v.load(place(v, i, scores)), part), place(v, i, scores)))


def _root(v: Vectors, x: Any) -> Any:
    """The square root of one float32."""
    return v.call("llvm.sqrt.f32", F32, x)


def _integers(
    v: Vectors, kind: Any, source: Any, target: Any, scale_at: Any, count: Any, plus: int, to: Any
) -> None:
    """target = plus + round(x / scale), where scale = the largest |x| / most. to: the target's vector type,
    which decides on `most`."""
    b = v.b

    def read(i: Any) -> Any:
        return (
            v.load(place(v, i, source)) if kind == FLOATS else v.floats(v.load(place(v, i, source, 2), kind))
        )

    def larger(x: Any, y: Any) -> Any:
        return b.select(b.icmp_signed(">", x, y), x, y)

    def first(i: Any, carried: list[Any]) -> list[Any]:
        # As integers, sizes of floats keep their order. Not-a-number is the largest, so the scale shows it.
        size = b.and_(b.bitcast(read(i), WORDS), ir.Constant(WORDS, [0x7FFFFFFF] * LANES))
        return [larger(carried[0], size)]

    def squares(i: Any, carried: list[Any]) -> list[Any]:
        part = b.fmul(read(i), one_over)
        return [v.fma(part, part, carried[0])]

    def longest() -> Any:
        """The largest integer of the row, so that it is no longer than LENGTH, whatever rounding adds."""
        (total,) = v.loop(count, [v.const(0.0)], squares)
        rounding = b.fmul(F32(0.5), _root(v, b.sitofp(v.scaled(count, LANES), F32)))
        return v.least(b.fdiv(b.fsub(F32(LENGTH), rounding), _root(v, v.total(total))), F32(SHORT))

    def last(i: Any) -> None:
        whole = v.call("llvm.rint.v16f32", FLOATS, b.fmul(read(i), by))
        number = b.add(b.fptosi(whole, WORDS), ir.Constant(WORDS, [plus] * LANES))
        v.store(b.trunc(number, to), place(v, i, target, to.element.width // 8))

    (largest,) = v.loop(count, [b.bitcast(v.const(1e-30), WORDS)], first)
    highest = b.bitcast(v.folded(largest, larger), F32)
    one_over = v.spread(b.fdiv(F32(1.0), highest))
    most = longest() if to == SHORTS else F32(127.0)
    v.store(b.fdiv(highest, most), scale_at)
    by = v.spread(b.fdiv(most, highest))
    each_vector(v, count, last)


def _bytes(kind: Any, v: Vectors, source: Any, target: Any, scale_at: Any, count: Any) -> None:
    """source, target, scale, count: uint8 = 128 + round(x / scale), where scale = the largest |x| / 127."""
    _integers(v, kind, source, target, scale_at, count, 128, BYTES)


floats_to_bytes, bfloats_to_bytes = (vectorised(4)(partial(_bytes, kind)) for kind in (FLOATS, BFLOATS))


@vectorised(4)
def floats_to_shorts(v: Vectors, source: Any, target: Any, scale_at: Any, count: Any) -> None:
    """target int16 = round(source / scale). The scale is the least with which no integer exceeds SHORT, nor
    the row's length LENGTH."""
    _integers(v, FLOATS, source, target, scale_at, count, 0, SHORTS)
