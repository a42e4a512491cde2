// Runs a program of WebAssembly with the system interface WASI: wasi.mjs PROGRAM [ARGUMENT...].
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const [, , program, ...words] = process.argv;
const wasi = new WASI({
  version: "preview1", args: [program, ...words], preopens: { ".": "." }, returnOnExit: true,
});
const { instance } = await WebAssembly.instantiate(readFileSync(program), wasi.getImportObject());
process.exitCode = wasi.start(instance);
