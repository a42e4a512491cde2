"""The npm package: WebAssembly that imports nothing, in Node and, as a page draws, in Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from projects import F32, affine_model, make_model, reference, require, typed_model

import atc
from atc.backends.targets import get_target
from atc.backends.toolchain.probe import probe
from atc.errors import OptionError

ROOT = Path(__file__).parents[2]
WEB = ROOT / "samples/web"
TARGET = "wasm32-simd128"
X = np.linspace(-1, 1, 10, dtype=np.float32)

pytestmark = pytest.mark.slow


def needs_wasm() -> None:
    tools = probe(get_target(TARGET), os.environ)
    if tools.compiler is None:
        pytest.skip(f"{tools.trouble}: {tools.advice}")


def compiled(folder: Path, model: onnx.ModelProto, name: str = "net", **options: object) -> Path:
    """Return the folder of a network's npm package."""
    needs_wasm()
    onnx.save(model, folder / "model.onnx")
    done = atc.compile(folder / "model.onnx", folder / name, target=TARGET, wrappers="js",
                       **options)  # type: ignore[arg-type] # fmt: skip
    return done.folder / "js"


def node(folder: Path, script: str) -> object:
    """Run a module that has `load`, `package` and the class of failures; returns what it prints."""
    file = folder / "main.mjs"
    begin = 'import * as package_ from "./index.mjs";\nconst { load, NetworkError } = package_;\n'
    file.write_text(f"{begin}{script}")
    done = subprocess.run([require("node"), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_computes_what_the_model_does(tmp_path: Path) -> None:
    folder = compiled(tmp_path, affine_model())
    reported = node(folder, f"""
const net = await load();
const {{ y, hidden }} = net.run({{ x: new Float32Array({X.tolist()}) }});
const other = await load(await (await import("node:fs/promises")).readFile("{folder}/net.wasm"));
const again = other.run({{ x: new Float32Array({X.tolist()}) }});
console.log(JSON.stringify([[...y], [...hidden], [...again.y], package_.inputs, package_.outputs]));
""")
    y, hidden, again, inputs, outputs = reported  # type: ignore[misc]
    wanted = reference(affine_model(), X.reshape(2, 5))
    np.testing.assert_allclose(y, wanted[0].ravel(), rtol=1e-5)
    np.testing.assert_allclose(hidden, wanted[1].ravel(), rtol=1e-5)
    assert again == y
    assert inputs == [{"name": "x", "size": 10, "shape": [2, 5]}]
    assert [t["name"] for t in outputs] == ["y", "hidden"]


def test_wrong_inputs_are_reported_by_name(tmp_path: Path) -> None:
    reported = node(compiled(tmp_path, affine_model()), """
const net = await load();
const reported = [];
for (const x of [new Float32Array(9), new Float64Array(10), undefined]) {
  try { net.run({ x }); } catch (error) { reported.push(String(error)); }
}
try { await load(new Uint8Array([0])); } catch (error) { reported.push(error.name); }
console.log(JSON.stringify(reported));
""")
    assert reported == ["TypeError: input x must be a Float32Array of 10 elements"] * 3 + [
        "CompileError"
    ]


def test_every_element_type_has_an_array(tmp_path: Path) -> None:
    folder = compiled(tmp_path, typed_model())
    reported = node(folder, """
const net = await load();
const given = Object.fromEntries(package_.inputs.map(({ name, Type, size }) => {
  const array = new Type(size);
  array[0] = Type.name.startsWith("Big") ? 5n : 5;
  return [name, array];
}));
const out = net.run(given);
const text = (_, v) => (typeof v === "bigint" ? Number(v) : v);
const arrays = [out.d_out, out.i_out, out.u_out, out.n_out, out.flag];
console.log(JSON.stringify(arrays.map((a) => [...a]), text));
""")
    assert reported == [[5, 0, 0]] * 4 + [[0, 0, 0]]
    declared = (folder / "index.d.ts").read_text()
    assert re.findall(r'"(n|u|h|flag)": (\w+);', declared) == [
        ("h", "Uint16Array"), ("u", "BigUint64Array"), ("n", "BigInt64Array"),
        ("flag", "Uint8Array"),
    ]  # fmt: skip


def test_a_state_is_carried_and_reset(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "s"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
    model = make_model(nodes, [("x", F32, (2,)), ("s", F32, (2,))],
                       [("y", F32, (2,)), ("t", F32, (2,))])  # fmt: skip
    reported = node(compiled(tmp_path, model, state="s:t"), """
const net = await load(), x = new Float32Array([1, 2]), reported = [];
for (let k = 0; k < 2; k++) reported.push([...net.run({ x }).y]);
net.reset();
console.log(JSON.stringify([...reported, [...net.run({ x }).y]]));
""")
    assert reported == [[1, 2], [2, 4], [1, 2]]


@pytest.mark.parametrize("name", ["__proto__", "class", '"; throw 1; //', "*/ throw 1", "given"])
def test_names_break_out_of_nothing(name: str, tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", [name], ["y"])], [(name, F32, (2,))],
                       [("y", F32, (2,))])  # fmt: skip
    reported = node(compiled(tmp_path, model), """
const net = await load();
const given = Object.create(null);
given[package_.inputs[0].name] = new Float32Array([-1, 2]);
console.log(JSON.stringify([...net.run(given).y]));
""")
    assert reported == [0, 2]


def test_the_package_can_be_installed_by_its_name(tmp_path: Path) -> None:
    folder = compiled(tmp_path, affine_model(), "MyNet")
    user = tmp_path / "user"
    shutil.copytree(folder, user / "node_modules/atc-mynet")  # what npm install makes
    assert json.loads((folder / "package.json").read_text())["name"] == "atc-mynet"
    (user / "main.mjs").write_text(
        'import { load } from "atc-mynet";\nconst net = await load();\n'
        "console.log(net.run({ x: new Float32Array(10) }).y.length);\n"
    )
    done = subprocess.run([require("node"), "main.mjs"], cwd=user, check=True, capture_output=True)
    assert done.stdout == b"6\n"


def test_npm_packs_and_installs_it(tmp_path: Path) -> None:
    npm = require("npm")
    folder = compiled(tmp_path, affine_model(), "MyNet")
    user = tmp_path / "user"
    user.mkdir()
    (user / "package.json").write_text('{"name": "user", "version": "1.0.0"}\n')
    env = {**os.environ, "npm_config_cache": str(tmp_path / "cache")}
    said = subprocess.run([npm, "pack", "--json", "--pack-destination", user], cwd=folder, env=env,
                          check=True, capture_output=True).stdout  # fmt: skip
    (packed,) = json.loads(said)
    assert {f["path"] for f in packed["files"]} == {
        "package.json", "index.mjs", "index.d.ts", "MyNet.wasm",
    }  # fmt: skip
    install = [npm, "install", "--offline", "--no-audit", "--no-fund", f"./{packed['filename']}"]
    subprocess.run(install, cwd=user, env=env, check=True, capture_output=True)
    (user / "main.mjs").write_text(
        'import { load } from "atc-mynet";\nconst net = await load();\n'
        f"console.log(JSON.stringify([...net.run({{ x: new Float32Array({X.tolist()}) }}).y]));\n"
    )
    done = subprocess.run([require("node"), "main.mjs"], cwd=user, check=True, capture_output=True)
    wanted = reference(affine_model(), X.reshape(2, 5))[0].ravel()
    np.testing.assert_allclose(json.loads(done.stdout), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"target": "c99"}, "--wrappers=js needs WebAssembly, not c99"),
        ({"target": TARGET, "external_weight": 2}, "weights beside the library can't be combined"),
    ],
)
def test_what_has_no_package_is_refused(
    options: dict[str, object], reported: str, tmp_path: Path
) -> None:
    if options["target"] == TARGET:
        needs_wasm()
    onnx.save(affine_model(), tmp_path / "model.onnx")
    with pytest.raises(OptionError, match=reported):
        atc.compile(tmp_path / "model.onnx", tmp_path / "net", wrappers="js", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "net").exists()


# ------------------------------------------------------------------------------ the sample page


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve the sample's page with the network of its README; yields the address and the folder."""
    needs_wasm()
    place = tmp_path / "web"
    place.mkdir()
    for file in WEB.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    command = re.findall(r"^    atc (--model.*)$", (WEB / "README.md").read_text(), re.M)[0]
    words = [w.replace("samples/web/digits", str(place / "digits")) for w in command.split()]
    subprocess.run([sys.executable, "-P", "-m", "atc", *words], cwd=ROOT, check=True,
                   capture_output=True)  # fmt: skip

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(place))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", place
        server.shutdown()
        thread.join()


STROKES = {"1": [[(100, 90), (150, 40), (150, 240)]], "7": [[(70, 60), (210, 60), (120, 240)]],
           "0": [[(140, 45), (85, 90), (75, 140), (85, 190), (140, 235), (195, 190), (205, 140),
                  (195, 90), (140, 45)]]}  # fmt: skip


@pytest.mark.parametrize("digit", STROKES)
def test_the_page_reads_what_one_draws(digit: str, site: tuple[str, Path], tmp_path: Path) -> None:
    address, place = site
    browser = require("chromium")
    page = (place / "index.html").read_text()
    drawing = f"""<script type="module">
await new Promise((done) => addEventListener("ready", done, {{ once: true }}));
const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
const send = (type, [x, y]) => canvas.dispatchEvent(new PointerEvent(type, {{
  clientX: box.left + x, clientY: box.top + y, buttons: 1, pointerId: 1, bubbles: true }}));
for (const stroke of {json.dumps(STROKES[digit])}) {{
  send("pointerdown", stroke[0]);
  for (const point of stroke) send("pointermove", point);
  send("pointerup", stroke.at(-1));
}}
</script></body>"""
    (place / "test.html").write_text(page.replace("</body>", drawing))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--virtual-time-budget=8000", f"--user-data-dir={tmp_path}/profile",
         f"{address}/test.html"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    answer = re.search(r'<output id="answer">([^<]*)</output>', done.stdout)
    assert answer, done.stdout + done.stderr
    assert answer[1] == digit
