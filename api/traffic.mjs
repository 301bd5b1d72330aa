// Compares what Azure's validator found in recorded traffic with what is recorded and explained:
// node traffic.mjs RECORDED ACCEPTED-REPORT REFUSED-REPORT
// Of an exchange that the service refused, the answer alone is judged: that the request was wrong is why it was refused.
import { readFileSync } from "node:fs";

const [recordedFile, ...reportFiles] = process.argv.slice(2);
const recorded = JSON.parse(readFileSync(recordedFile, "utf8"));
const [accepted, refused] = reportFiles.map((file) => JSON.parse(readFileSync(file, "utf8")));

for (const report of [accepted, refused]) {
  // The validator stops without a word where it fails. So the last exchange is one that it must complain about.
  const last = report.errors.findIndex(({ errorMessage }) => errorMessage.includes("the-last-exchange"));
  if (last < 0) fail("The validator did not read all of the traffic.");
  report.errors.splice(last, 1);
}
const found = [...accepted.errors, ...refused.errors.filter(({ issueSource }) => issueSource === "response")];
const unexplained = new Map();
for (const finding of found) {
  const name = `${finding.issueSource} of ${finding.operationId}: ${finding.errorCode}: ${finding.errorMessage}`;
  if (!recorded[name]) unexplained.set(name, (unexplained.get(name) ?? 0) + 1);
}
for (const [name, times] of unexplained) console.error(`new: ${name} (${times} times)`);
if (unexplained.size) fail(`Change the service or the contract, or explain the finding in ${recordedFile}.`);
console.error(`${found.length} findings, all explained in ${recordedFile}`);

function fail(why) {
  console.error(why);
  process.exit(1);
}
