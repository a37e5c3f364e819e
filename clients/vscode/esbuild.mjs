// Builds dist/ (what the package holds) or, with --test, out/test/ (what `node --test` runs).
import { build } from "esbuild";
import { readdirSync } from "node:fs";

const shared = { bundle: true, sourcemap: false, logLevel: "warning", legalComments: "eof" };

if (process.argv.includes("--test")) {
  const names = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: names.map((name) => `test/${name}`),
    outdir: "out/test",
    platform: "node",
    target: "node18",
    format: "cjs",
    alias: { vscode: "./test/fake_vscode.ts" },
  });
} else {
  const host = { platform: "node", target: "node18", format: "cjs", external: ["vscode"] };
  await build({ ...shared, ...host, entryPoints: ["src/editor/extension.ts"], outfile: "dist/extension.js", minify: true });
  await build({ ...shared, entryPoints: ["src/webview/chat.ts"], outfile: "dist/chat.js", target: "es2022", format: "iife", minify: true });
}
