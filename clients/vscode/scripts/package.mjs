// Makes sojourn-VERSION.vsix from what was built: a zip in the Open Packaging Convention, the same bytes for the same input.
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { zipSync } from "fflate";

const manifest = JSON.parse(readFileSync("package.json", "utf8"));
const HELD = ["package.json", "README.md", "LICENSE.txt", "dist", "media"];
const at = { mtime: new Date("2026-01-01T00:00:00") };

function files(path) {
  return statSync(path).isDirectory() ? readdirSync(path).sort().flatMap((name) => files(join(path, name))) : [path];
}

function xml(text) {
  return String(text).replace(/[<>&"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

const { devDependencies: _, scripts: __, private: ___, ...shipped } = manifest;
const vsixManifest = `<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="${xml(manifest.name)}" Version="${xml(manifest.version)}" Publisher="${xml(manifest.publisher)}"/>
    <DisplayName>${xml(manifest.displayName)}</DisplayName>
    <Description xml:space="preserve">${xml(manifest.description)}</Description>
    <Tags>agents,llm,chat</Tags>
    <Categories>${xml(manifest.categories.join(","))}</Categories>
    <License>extension/LICENSE.txt</License>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="${xml(manifest.engines.vscode)}"/>
      <Property Id="Microsoft.VisualStudio.Code.ExtensionKind" Value="workspace"/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.Details" Path="extension/README.md" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.License" Path="extension/LICENSE.txt" Addressable="true"/>
  </Assets>
</PackageManifest>
`;
const types = `<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">${
  ["css", "js", "json", "md", "svg", "txt", "vsixmanifest"].map((one) => `<Default Extension="${one}" ContentType="${
    { css: "text/css", js: "application/javascript", json: "application/json", md: "text/markdown", svg: "image/svg+xml", txt: "text/plain", vsixmanifest: "text/xml" }[one]
  }"/>`).join("")
}</Types>
`;

const text = (value) => [new TextEncoder().encode(value), at];
const content = { "extension.vsixmanifest": text(vsixManifest), "[Content_Types].xml": text(types) };
for (const path of HELD.flatMap((one) => (one === "LICENSE.txt" ? [] : files(one)))) content[`extension/${path}`] = [readFileSync(path), at];
content["extension/package.json"] = text(`${JSON.stringify(shipped, null, 2)}\n`);
content["extension/LICENSE.txt"] = [readFileSync("../../LICENSE"), at];

const name = `${manifest.name}-${manifest.version}.vsix`;
writeFileSync(name, zipSync(content, { level: 9 }));
console.log(name);
