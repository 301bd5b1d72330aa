// Emits the swagger with Azure's own emitter, twice:
//   azure/flexnode.json   as Azure's reviewers and linter expect it: ARM's common types (errors, envelope, parameters) are
//                         references to a file of theirs, which is made here from the TypeSpec library it comes from.
//   flexnode.json         the one that is committed and served: the same in one file that needs no other.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { $onEmit as emitSwagger } from "@azure-tools/typespec-autorest";
import { navigateProgram } from "@typespec/compiler";

const commonTypes = "common-types/resource-management";
const references = new Set(["$armCommonDefinition", "$armCommonParameter"]);
const libraries = /\bAzure\.(ResourceManager(\.CommonTypes)?|Core)\.(?=\w+")/g;
const fromLibraries = /^Azure\./;

export async function $onEmit(context) {
  const { program, emitterOutputDir: directory } = context;
  await emit(context, "azure/flexnode.json");
  forgetReferences(program);
  await emit(context, "flexnode.json");
  if (program.hasError()) return;
  const path = join(directory, "flexnode.json");
  const { swagger, common } = separate(await readFile(path, "utf8"));
  await write(path, swagger);
  await write(join(directory, commonTypes, "v6/types.json"), common);
}

async function emit(context, file) {
  await emitSwagger({
    ...context,
    options: {
      "output-file": file,
      "arm-types-dir": join(context.emitterOutputDir, commonTypes),
      "examples-dir": join(context.program.projectRoot, "examples"),
      "skip-example-copying": true,
      "omit-unreachable-types": true,
      "use-read-only-status-schema": true,
      "new-line": "lf",
    },
  });
}

async function write(path, document) {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, JSON.stringify(document, null, 2) + "\n");
}

/** Without these marks the emitter writes a common type out, where it would have referred to it. */
function forgetReferences(program) {
  const forget = (type) => {
    type.decorators = type.decorators.filter(({ decorator }) => !references.has(decorator.name));
    type.derivedModels?.forEach(forget);
  };
  const everyType = { model: forget, modelProperty: forget, enum: forget, union: forget };
  navigateProgram(program, everyType, { includeTemplateDeclaration: true });
}

/** The swagger with short names and without what it does not use; and those of its types that are ARM's. */
function separate(text) {
  const { definitions, parameters } = JSON.parse(text);
  const theirs = [...Object.keys(definitions), ...Object.keys(parameters)].filter((name) => fromLibraries.test(name)).map(shorten);
  const ours = new Set(Object.keys(definitions).filter((name) => !fromLibraries.test(name)));
  const taken = theirs.find((name) => ours.has(name));
  if (taken) throw new Error(`ARM has a type ${taken} as well: rename ours.`);

  const swagger = JSON.parse(text.replace(libraries, ""));
  correct(swagger.definitions);
  swagger.definitions = reachable(swagger);
  const isTheirs = ([name]) => theirs.includes(name) || name === "OperationListResult";
  const common = {
    swagger: "2.0",
    info: { title: "ARM's common types, as far as they are used", version: "v6" },
    paths: {},
    definitions: Object.fromEntries(Object.entries(swagger.definitions).filter(isTheirs)),
    parameters: Object.fromEntries(Object.entries(swagger.parameters).filter(isTheirs)),
  };
  return { swagger, common };
}

function shorten(name) {
  return `${name}"`.replace(libraries, "").slice(0, -1);
}

/** Two details in which ARM's own file differs from its library, and which its linter looks for. */
function correct({ Resource, SystemData }) {
  const { $ref, ...rest } = Resource.properties.type;
  Resource.properties.type = { type: "string", ...rest };
  SystemData.readOnly = true;
}

function reachable({ paths, definitions }) {
  const reached = new Set();
  const visit = (value) => {
    if (typeof value !== "object" || value === null) return;
    const name = /^#\/definitions\/(.+)$/.exec(value.$ref)?.[1];
    if (name && !reached.has(name)) {
      reached.add(name);
      visit(definitions[name]);
    }
    Object.values(value).forEach(visit);
  };
  visit(paths);
  return Object.fromEntries([...reached].sort().map((name) => [name, definitions[name]]));
}
