// Formats Lua files as clients/nvim/.stylua.toml says. `node format.mjs [--check] FILE…`; with --check nothing is
// written, files that are not formatted are named and the exit code is 1.
import { readFileSync, writeFileSync } from "node:fs";
import {
  CallParenType, Config, IndentType, LuaVersion, OutputVerification, QuoteStyle, formatCode,
} from "@johnnymorganz/stylua";

function style() { // a new one for each file: formatting uses it up
  const config = Config.new();
  config.column_width = 120;
  config.indent_type = IndentType.Spaces;
  config.indent_width = 2;
  config.quote_style = QuoteStyle.AutoPreferDouble;
  config.call_parentheses = CallParenType.Always;
  config.syntax = LuaVersion.LuaJIT;
  return config;
}

const words = process.argv.slice(2);
const check = words[0] === "--check";
for (const file of words.slice(check ? 1 : 0)) {
  const before = readFileSync(file, "utf8");
  const after = formatCode(before, style(), undefined, OutputVerification.None);
  if (after === before) continue;
  if (check) {
    console.log(`${file} is not formatted`);
    process.exitCode = 1;
  } else {
    writeFileSync(file, after);
  }
}
