/** Build the page: one HTML file with style, script, worker and content inside. */

import { readFileSync, writeFileSync } from "node:fs";
import { build, transform } from "esbuild";

const out = process.argv[2] ?? "../src/eqprop/explorer/page.html";
const text = (file) => readFileSync(new URL(file, import.meta.url), "utf8");

async function bundle(entry, define = {}) {
  const { outputFiles } = await build({
    entryPoints: [new URL(entry, import.meta.url).pathname],
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    write: false,
    define,
  });
  return outputFiles[0].text.trim().replaceAll("</script", "<\\/script");
}

const css = { loader: "css", minify: true, charset: "utf8" };
const { code: style } = await transform(text("src/style.css"), css);
const worker = await bundle("src/worker.ts");
const script = await bundle("src/main.ts", { WORKER: JSON.stringify(worker) });
const parts = { style: style.trim(), script, content: text("content.json").trim() };
const page = text("src/page.html").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
writeFileSync(out, page);
console.log(`${out}: ${(page.length / 1e6).toFixed(2)} MB`);
