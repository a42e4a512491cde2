"""What is quantized stays in integers where the run decides extents, too: text in, text out."""

from __future__ import annotations

import pytest
from graph_text import after, plain_lines

BYTES = """\
graph net(q: u8[1,4,d[0],d[1]], r: u8[1,4,d[0],d[1]])
  dim Symbol(index=0, label=h, low=2, high=9)
  dim Symbol(index=1, label=w, low=2, high=9)
"""
X = "x: f32[1,4,d[0],d[1]] = Map(shape=(4 * d[0] * d[1]), {}, views=(<1>)) q  # x".format(
    "expr=Mul(Cast<f32>(x0:u8), 0.5)"
)
Y = X.replace("x: ", "y: ").replace("0.5", "2.0").replace(") q  # x", ") r  # y")
QUANTIZED = "CastSaturate<u8>(Round(Div({}, 2.0)))"
PAD = "Pad(mode=constant, shape=(1, 4, d[0], d[1]), begins=(0, 0, 1, 0), ends=(0, 0, 0, 2))"
CONCAT = "Concat(outer=1, parts=(4 * d[0] * d[1], 4 * d[0] * d[1]))"
GATHER = "Gather(shape=(2), run=d[0] * d[1], address=Mul(x0:i64, [d[0] * d[1]]:i64), {})".format(
    "views=(<1>), proven=True"
)
WHOLE = "shape=(4), reduced=(d[0] * d[1])"
EVERY = "views=(<d[0] * d[1],1>)"
OUT = "((d[0] + 1) / 2),((d[1] + 1) / 2)"
THIRDS = "kernel=(3, 3), strides=(2, 2), dilations=(1, 1), pads=(1, 1)"
HALVES = "kernel=(2, 2), strides=(2, 2), dilations=(1, 1), pads=(0, 0)"


def inside(axis: int) -> str:
    """Return how many of three taps from 2 * x - 1 on are places of an axis."""
    first = f"Sub(Mul(x{axis}:i64, 2:i64), 1:i64)"
    end = f"Min(Add({first}, 3:i64), [d[{axis}]]:i64)"
    return f"Max(Sub({end}, Max({first}, 0:i64)), 1:i64)"


CASES = {
    "padding is the number of a float": (
        f"""
          const three: f32[] = (3.0)
          {X}
          z: f32[1,4,d[0] + 1,d[1] + 2] = {PAD} x, three  # z
          return z
        """,
        f"""
          const x.padding: u8[1] = (6)
          z.q: u8[1,4,d[0] + 1,d[1] + 2] = {PAD} q, x.padding  # z
          z: f32[1,4,d[0] + 1,d[1] + 2] = Map(shape=(8 * d[0] + 4 * d[0] * d[1] + 4 * d[1] + 8), \
expr=Mul(Cast<f32>(x0:u8), 0.5), views=(<1>)) z.q  # x; z
          return z
        """,
    ),
    "joined bytes are those of the result's scale": (
        f"""
          {X}
          {Y}
          c: f32[1,8,d[0],d[1]] = {CONCAT} x, y  # c
          z: u8[1,8,d[0],d[1]] = Map(shape=(8 * d[0] * d[1]), expr={QUANTIZED.format("x0")}, \
views=(<1>)) c  # z
          return z
        """,
        f"""
          z.q: u8[1,4,d[0],d[1]] = Map(shape=(4 * d[0] * d[1]), \
expr={QUANTIZED.format("Mul(Cast<f32>(x0:u8), 0.5)")}, views=(<1>)) q  # z
          z: u8[1,8,d[0],d[1]] = {CONCAT} z.q, r  # x; y; c; z
          return z
        """,
    ),
    "planes are gathered in bytes": (
        f"""
          const i: i64[2] = (3, 1)
          {X}
          z: f32[1,2,d[0],d[1]] = {GATHER} x, i  # z
          return z
        """,
        f"""
          const i: i64[2] = (3, 1)
          z.q: u8[1,2,d[0],d[1]] = {GATHER} q, i  # z
          z: f32[1,2,d[0],d[1]] = Map(shape=(2 * d[0] * d[1]), expr=Mul(Cast<f32>(x0:u8), 0.5), \
views=(<1>)) z.q  # x; z
          return z
        """,
    ),
    "a mean is of an exact sum": (
        f"""
          {X}
          z: f32[1,4] = Reduce(how=Sum, {WHOLE}, expr=x0, {EVERY}, \
epilogue=Div(x0, [d[0] * d[1]])) x  # z
          return z
        """,
        f"""
          z: f32[1,4] = Reduce(how=Sum, {WHOLE}, expr=Cast<i32>(x0:u8), {EVERY}, \
epilogue=Div(Mul(Cast<f32>(x0:i32), 0.5), [d[0] * d[1]])) q  # x; z
          return z
        """,
    ),
    "an average counts what lies inside": (
        f"""
          {X}
          z: f32[1,4,{OUT}] = Pool(how=Average, window=Window({THIRDS}), end_pads=(1, 1)) x  # z
          return z
        """,
        f"""
          const ones: i8[4,1,3,3] = a3674a4adbfcde9f
          z.counts: f32[{OUT}] = Map(shape=({OUT.replace(",", ", ")}), \
expr=Cast<f32>(Mul({inside(0)}, {inside(1)})), views=(), coordinates=(<1,0>, <0,1>))  # z
          z: f32[1,4,{OUT}] = Conv(window=Window({THIRDS}), group=4, \
epilogue=Div(Mul(Cast<f32>(x0:i32), 0.5), x1)<0,0,((d[1] + 1) / 2),1>, accumulator=i32) \
q, ones, z.counts  # x; z
          return z
        """,
    ),
    "an average of whole windows is divided by a number": (
        f"""
          {X}
          z: f32[1,4,(d[0] / 2),(d[1] / 2)] = Pool(how=Average, window=Window({HALVES}), \
end_pads=(0, 0)) x  # z
          return z
        """,
        f"""
          const ones: i8[4,1,2,2] = ({", ".join("1" * 16)})
          z: f32[1,4,(d[0] / 2),(d[1] / 2)] = Conv(window=Window({HALVES}), group=4, \
epilogue=Div(Mul(Cast<f32>(x0:i32), 0.5), 4.0), accumulator=i32) q, ones  # x; z
          return z
        """,
    ),
}


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "-"))
def test_integers_are_read_in_place_of_floats(name: str) -> None:
    given, expected = map(plain_lines, CASES[name])
    changed = after("lower_qdq", BYTES + given)
    assert plain_lines(changed.removeprefix(BYTES)) == expected
