// Reads the digit on the canvas after every stroke, with the network in digits/js.
import { load } from "./digits/js/index.mjs";

const SIDE = 28; // of the network's image
const SPAN = 20; // of the digit in it
const canvas = document.querySelector("canvas");
const pen = canvas.getContext("2d", { willReadFrequently: true });
const small = new OffscreenCanvas(SIDE, SIDE).getContext("2d", { willReadFrequently: true });
const find = (id) => document.getElementById(id);

function clear() {
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  find("answer").textContent = "";
  find("scores").replaceChildren();
}

/** Return the drawing as the network takes digits: ink is 1, scaled and centred by its ink. */
function image() {
  const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let [left, right, top, bottom, x0, y0, ink] = [width, 0, height, 0, 0, 0, 0];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const dark = 255 - data[4 * (y * width + x)];
      if (dark < 128) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
      [x0, y0, ink] = [x0 + x, y0 + y, ink + 1];
    }
  }
  if (ink === 0) return null;
  const scale = SPAN / Math.max(right - left + 1, bottom - top + 1);
  small.fillStyle = "white";
  small.fillRect(0, 0, SIDE, SIDE);
  small.imageSmoothingQuality = "high";
  small.setTransform(scale, 0, 0, scale, SIDE / 2 - (x0 / ink) * scale, SIDE / 2 - (y0 / ink) * scale);
  small.drawImage(canvas, 0, 0);
  small.resetTransform();
  const pixels = small.getImageData(0, 0, SIDE, SIDE).data;
  return Float32Array.from({ length: SIDE * SIDE }, (_, k) => 1 - pixels[4 * k] / 255);
}

function show(scores, milliseconds) {
  const best = scores.indexOf(Math.max(...scores));
  find("answer").textContent = best;
  find("time").textContent = `${milliseconds.toFixed(1)} ms`;
  find("scores").replaceChildren(...[...scores].map((score, digit) => {
    const row = document.createElement("tr");
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = `${Math.round(150 * score)}px`;
    row.insertCell().textContent = digit;
    row.insertCell().append(bar);
    row.insertCell().textContent = `${(100 * score).toFixed(0)} %`;
    return row;
  }));
}

const network = await load();

canvas.addEventListener("pointerdown", (event) => {
  pen.lineWidth = 22;
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(event.offsetX, event.offsetY);
});
canvas.addEventListener("pointermove", (event) => {
  if (!event.buttons) return;
  pen.lineTo(event.offsetX, event.offsetY);
  pen.stroke();
});
canvas.addEventListener("pointerup", () => {
  const given = image();
  if (given === null) return;
  const begin = performance.now();
  const { scores } = network.run({ image: given });
  show(scores, performance.now() - begin);
});
find("clear").addEventListener("click", clear);
clear();
dispatchEvent(new Event("ready"));
