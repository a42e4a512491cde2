"""Fit the coefficients of math.h, scalar_math.h (float32) and exact.h (float64), and print them.

Each fit minimises the largest weighted error over Chebyshev nodes by Lawson's iteration (least
squares, reweighted by the error it left; Lawson 1961). Coefficients of floats are rounded to
float32 one after another, constant term first, and the rest is refitted, so that later terms
absorb the rounding of earlier ones.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[float], float]

LN2 = math.log(2.0)
NODES = 2000
FEW = 400


def lawson(basis: Array, values: Array, weights: Array, rounds: int = 80) -> Array:
    """Return c that nearly minimises max |weights * (basis @ c - values)|."""
    importance = np.full(len(values), 1.0 / len(values))
    best, best_error = np.zeros(basis.shape[1]), math.inf
    for _ in range(rounds):
        scale = np.sqrt(importance) * weights
        c = np.linalg.lstsq(basis * scale[:, None], values * scale, rcond=None)[0]
        error = np.abs((basis @ c - values) * weights)
        if error.max() < best_error:
            best, best_error = c, float(error.max())
        importance *= error / error.max() + 1e-4
        importance /= importance.sum()
    return best


def fit_rounded(x: Array, values: Array, weights: Array, degree: int) -> Array:
    """Return the float32 coefficients, constant first, of a polynomial near the values at x."""
    rounded = np.zeros(degree + 1)
    for k in range(degree + 1):
        rest = values - np.polyval(rounded[::-1], x)
        c = lawson(x[:, None] ** np.arange(k, degree + 1), rest, weights)
        rounded[k] = np.float32(c[0])
    return rounded


def fit(f: Function, weight: Function, low: float, high: float, degree: int) -> Array:
    """Return the float32 coefficients, constant first, of a polynomial near f on [low, high]."""
    nodes = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    x = (low + high) / 2 + (high - low) / 2 * nodes
    weights = np.array([weight(t) for t in x])
    return fit_rounded(x, np.array([f(t) for t in x]), weights, degree)


def fit_pieces(f: Function, width: float, count: int = 16, degree: int = 6) -> Array:
    """Return coefficients [degree + 1, count] of polynomials near an f with f(0) = 0 around
    multiples of a width, in relative terms."""
    nodes = width / 2 * np.cos(np.pi * (np.arange(FEW) + 0.5) / FEW)
    first = (nodes + width / 2) / 2  # without a constant term, as f / x
    rows = [np.r_[-0.0, fit_rounded(first, *_relative(f, first, first), degree - 1)]]
    for k in range(1, count):
        rows.append(fit_rounded(nodes, *_relative(f, k * width + nodes, np.ones(FEW)), degree))
    return np.array(rows).T


def _relative(f: Function, x: Array, over: Array) -> tuple[Array, Array]:
    """Return f(x) / over, and its inverse."""
    y = np.array([f(t) for t in x]) / over
    return y, 1 / np.abs(y)


def fit_quotient(
    f: Function, weight: Function, high: float, degrees: tuple[int, int], q0: float
) -> tuple[Array, Array]:
    """Return p and q of the given degrees, q[0] = q0, with p / q near f on [0, high].

    Loeb's iteration: |p - f q| is minimised with the weight divided by the q of the round before;
    q is rounded first and p fitted to the rounded q.
    """
    x = high * ((1 + np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)) / 2) ** 2
    y = np.array([f(t) for t in x])
    weights = np.array([weight(t) for t in x])
    unit = high / 8  # keeps the powers of x comparable
    top = (x[:, None] / unit) ** np.arange(degrees[0] + 1)
    bottom = y[:, None] * (x[:, None] / unit) ** np.arange(1, degrees[1] + 1)
    q = np.array([q0])
    for _ in range(30):
        c = lawson(np.hstack([top, -bottom]), q0 * y, weights / np.polyval(q[::-1], x))
        tail = c[degrees[0] + 1 :] / unit ** np.arange(1, degrees[1] + 1)
        q = np.r_[q0, tail].astype(np.float32).astype(np.float64)
    scale = np.polyval(q[::-1], x)
    return fit_rounded(x, y * scale, weights / scale, degrees[0]), q


def fit_double(f: Function, weight: Function, low: float, high: float, degree: int) -> Array:
    """Return the float64 coefficients, constant first, of a polynomial near f on [low, high]."""
    nodes = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    x = (low + high) / 2 + (high - low) / 2 * nodes
    powers = np.arange(degree + 1)
    weights = np.array([weight(t) for t in x])
    c = lawson((x[:, None] / high) ** powers, np.array([f(t) for t in x]), weights)
    found: Array = c / high**powers
    return found


def fit_quotient_double(f: Function, high: float, degrees: tuple[int, int]) -> tuple[Array, Array]:
    """Return p and q, q[0] = 1, with p / q near f on [0, high] in relative terms, as above."""
    x = high * ((1 + np.cos(np.pi * (np.arange(FEW) + 0.5) / FEW)) / 2) ** 2
    y = np.array([f(t) for t in x])
    tops, bottoms = np.arange(degrees[0] + 1), np.arange(1, degrees[1] + 1)
    unit = high / 4
    basis = np.hstack([(x[:, None] / unit) ** tops, -y[:, None] * (x[:, None] / unit) ** bottoms])
    p: Array = np.zeros(len(tops))
    q, scale, best = p, np.ones(FEW), math.inf
    for _ in range(20):
        c = lawson(basis, y, 1 / (y * scale), 40)
        top, bottom = c[: len(tops)] / unit**tops, np.r_[1, c[len(tops) :] / unit**bottoms]
        scale = np.abs(np.polyval(bottom[::-1], x))
        error = float(np.abs(np.polyval(top[::-1], x) / scale / y - 1).max())
        if error < best:
            p, q, best = top, bottom, error
    return p, q


def exp_tail(r: float) -> float:
    """(e^r - 1 - r) / r^2."""
    if abs(r) > 2e-2:
        return (math.expm1(r) - r) / r**2
    return math.fsum(r**k / math.factorial(k + 2) for k in range(7))


def log_tail(f: float) -> float:
    """(log(1 + f) - f + f^2 / 2) / f^3."""
    if abs(f) > 1e-2:
        return (math.log1p(f) - f + f * f / 2) / f**3
    return math.fsum((-f) ** k / (k + 3) for k in range(9))


def erf_tail(t: float) -> float:
    """(erf(x) - x) / x for t = x^2."""
    return math.erf(math.sqrt(t)) / math.sqrt(t) - 1 if t > 1e-12 else 2 / math.sqrt(math.pi) - 1


def artanh_tail(t: float) -> float:
    """(2 artanh(s) - 2 s) / s^3 for t = s^2."""
    s = math.sqrt(t)
    if t > 3e-3:
        return (2 * math.atanh(s) - 2 * s) / s**3
    return math.fsum(2 * t**k / (2 * k + 3) for k in range(7))


def erf_ratio(t: float) -> float:
    """erf(x) / x for t = x^2."""
    return math.erf(math.sqrt(t)) / math.sqrt(t)


def mills(a: float) -> float:
    """P(normal > a) e^(a^2 / 2)."""
    return 0.5 * math.erfc(a / math.sqrt(2)) * math.exp(a * a / 2)


def log_erfc(x: float) -> float:
    """log(1 - erf(x))."""
    return math.log(math.erfc(x))


def normal_tail(a: float) -> float:
    """(2 (1 + a) M(a) - 1) / a with M(a) = P(normal > a) e^(a^2 / 2)."""
    return (2 * (1 + a) * mills(a) - 1) / a


def log2_normal(a: float) -> float:
    """log2(Phi(-a))."""
    return math.log2(0.5 * math.erfc(a / math.sqrt(2)))


def normal_product(a: float) -> float:
    """GELU at -a: -a Phi(-a)."""
    return -a * 0.5 * math.erfc(a / math.sqrt(2))


def sin_tail(t: float) -> float:
    """(sin(x) - x) / x^3 for t = x^2."""
    x = math.sqrt(t)
    if t > 1e-2:
        return (math.sin(x) - x) / x**3
    return -1 / 6 + t / 120 - t * t / 5040 + t**3 / 362880


def cos_tail(t: float) -> float:
    """(cos(x) - 1 + x^2 / 2) / x^4 for t = x^2."""
    if t > 1e-2:
        return (math.cos(math.sqrt(t)) - 1 + t / 2) / t**2
    return 1 / 24 - t / 720 + t * t / 40320 - t**3 / 3628800 + t**4 / 479001600


def atan_tail(t: float) -> float:
    """(atan(x) - x) / x^3 for t = x^2."""
    x = math.sqrt(t)
    if t > 1e-3:
        return (math.atan(x) - x) / x**3
    return math.fsum((-t) ** k / -(2 * k + 3) for k in range(6))


def asin_tail(t: float) -> float:
    """(asin(x) - x) / x^3 for t = x^2."""
    x = math.sqrt(t)
    if t > 1e-3:
        return (math.asin(x) - x) / x**3
    return 1 / 6 + 3 * t / 40 + 15 * t * t / 336 + 105 * t**3 / 3456


def of_scalar_math() -> dict[str, Array]:
    """Return every table of scalar_math.h; the error is relative to the final result."""
    narrow = (math.sqrt(2.0) - 1) ** 2
    return {
        "atan": fit(atan_tail, lambda t: t / (1 + t * atan_tail(t)), 0.0, narrow, 4),
        "asin": fit(asin_tail, lambda t: t / (1 + t * asin_tail(t)), 0.0, 0.25, 4),
    }


def of_math() -> dict[str, Array]:
    """Return every table of math.h; each weight makes the error relative to the final result."""
    half = LN2 / 2
    fits = {
        "exp": fit(exp_tail, lambda r: r * r / math.exp(r), -half, half, 4),
        "log": fit(
            log_tail,
            lambda f: f**3 / math.log1p(f) if f else 0.0,
            math.sqrt(0.5) - 1,
            math.sqrt(2.0) - 1,
            8,
        ),
        "artanh": fit(artanh_tail, lambda t: t, 0.0, 1 / 9, 3),
        "erf": fit(erf_tail, lambda t: 1 / (1 + erf_tail(t)), 0.0, 0.85, 6),
        "log erfc": fit(log_erfc, lambda x: math.erfc(x) / math.erf(x), 0.9, 4.0, 6),
        "sin": fit(sin_tail, lambda t: t / (1 + t * sin_tail(t)), 0.0, (math.pi / 4) ** 2, 3),
        "cos": fit(cos_tail, lambda t: t**2, 0.0, (math.pi / 4) ** 2, 3),
        "log2 normal": fit(log2_normal, lambda a: 1.0, 0.0, 6.0, 7),
        "exp by tables": fit(exp_tail, lambda r: r * r / math.exp(r), -half / 16, half / 16, 1),
        "exp2": fit(lambda r: 2.0**r, lambda r: 2.0**-r, -0.5, 0.5, 4),
    }
    # Of eight scales of p and q this one gave the smallest error after float evaluation.
    fits["normal tail p"], fits["normal tail q"] = fit_quotient(
        normal_tail, lambda a: a / (1 + a * normal_tail(a)), 14.5, (4, 5), 1.375
    )
    return fits


def of_pieces() -> dict[str, Array]:
    """Return every table of math.h whose numbers are looked up, row by row."""
    tables: dict[str, Array] = {
        "roots of 2": np.array([[np.float32(2.0 ** (k / 16)) for k in range(16)]]),
        "tanh": fit_pieces(math.tanh, 0.59375), "erf of 16": fit_pieces(math.erf, 0.2578125),
        "gelu of 16": fit_pieces(normal_product, 0.4375),
        "erf of 8": fit_pieces(math.erf, 0.53125, 8, 9),
        "gelu of 8": fit_pieces(normal_product, 0.90625, 8, 9),
    }  # fmt: skip
    return {f"pieces, {name}, {k}": row for name, t in tables.items() for k, row in enumerate(t)}


def of_exact() -> dict[str, Array]:
    """Return every table of exact.h; the error is relative to the final result."""
    half, turn = LN2 / 2 * 1.0001, (math.pi / 4 + 1e-3) ** 2  # n is rounded from a rounded product
    fits = {
        "exp": fit_double(exp_tail, lambda r: r * r / math.exp(r), -half, half, 5),
        "log": fit_double(artanh_tail, lambda t: t, 0.0, 1 / 9, 5),
        "sin": fit_double(sin_tail, lambda t: t / (1 + t * sin_tail(t)), 0.0, turn, 3),
        "cos": fit_double(cos_tail, lambda t: t**2, 0.0, turn, 3),
    }
    fits["erf p"], fits["erf q"] = fit_quotient_double(erf_ratio, 16.0, (7, 7))
    fits["normal tail p"], fits["normal tail q"] = fit_quotient_double(mills, 14.5, (5, 6))
    return fits


def main() -> None:
    """Print all coefficients."""
    for name, c in {**of_math(), **of_scalar_math(), **of_pieces()}.items():
        print(f"{name}:", ", ".join(f"{v:.9g}f" for v in c))
    for name, c in of_exact().items():
        print(f"{name}:", ", ".join(f"{v:.13g}" for v in c))


if __name__ == "__main__":
    main()
