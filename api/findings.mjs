// Compares what Azure's linter found with what is recorded and explained: node findings.mjs LOG RECORDED SWAGGER
import { readFileSync } from "node:fs";

const [log, recordedFile, swaggerFile] = process.argv.slice(2);
const linters = ["openapiValidatorPluginFunc: Return", "spectralPluginFunc: Return"];

const swagger = JSON.parse(readFileSync(swaggerFile, "utf8"));
const recorded = JSON.parse(readFileSync(recordedFile, "utf8"));
const messages = readFileSync(log, "utf8").split("\n").map(parse).filter(Boolean);
const found = messages.filter(({ code, details }) => code && details);

const silent = linters.find((last) => !messages.some(({ message }) => message === last));
if (silent) {
  console.error(readFileSync(log, "utf8"));
  fail("The linter did not finish.");
}
const unexplained = found.filter((finding) => !recorded[finding.code]?.[place(finding)]);
for (const finding of unexplained) {
  console.error(`new ${finding.level}: ${finding.code} at ${place(finding)}\n    ${finding.message}`);
}
const seen = new Set(found.map((finding) => `${finding.code} at ${place(finding)}`));
const gone = Object.entries(recorded)
  .flatMap(([rule, places]) => Object.keys(places).map((where) => `${rule} at ${where}`))
  .filter((name) => !seen.has(name));
for (const name of gone) console.error(`no longer found: ${name}`);
if (unexplained.length) fail(`Change the contract, or explain the finding in ${recordedFile}.`);
if (gone.length) fail(`Remove it from ${recordedFile}.`);
console.error(`${seen.size} findings, all explained in ${recordedFile}`);

function parse(line) {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** Where a finding is, with an operation's id in place of its path and method. */
function place({ details: { jsonpath } }) {
  const [group, path, method, ...rest] = jsonpath;
  const id = group === "paths" && swagger.paths[path]?.[method]?.operationId;
  return (id ? [id, ...rest] : jsonpath).join("/");
}

function fail(why) {
  console.error(why);
  process.exit(1);
}
