// wasi.mjs - runs a WebAssembly program in Node.js, with the files of the current folder (WASI):
//
//     node --no-warnings wasi.mjs PROGRAM [ARGUMENT...]
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const [, , program, ...words] = process.argv;
const wasi = new WASI({
  version: "preview1", args: [program, ...words], preopens: { ".": "." }, returnOnExit: true,
});
const { instance } = await WebAssembly.instantiate(readFileSync(program), wasi.getImportObject());
process.exitCode = wasi.start(instance);
