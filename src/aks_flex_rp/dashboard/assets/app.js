// Pages work without this. It keeps them fresh, says times as people do, copies commands, and applies filters at once.
"use strict";

const LIVE_SECONDS = 2;

function ago(element) {
  const seconds = Math.round((Date.now() - Date.parse(element.dateTime)) / 1000);
  const past = Math.abs(seconds);
  const [size, unit] = past < 90 ? [1, "second"] : past < 5400 ? [60, "minute"] : past < 129600 ? [3600, "hour"] : [86400, "day"];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
  if (!element.title) element.title = element.textContent.trim();
  element.textContent = words.format(-Math.round(seconds / size), unit);
}

function tellTimes(root) {
  for (const each of root.querySelectorAll("time[data-ago]")) ago(each);
}

// What a person is at stays: the place of the keyboard, and what was opened.
function replace(live, text) {
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = [...live.querySelectorAll("details[open][id]")].map((each) => each.id);
  const scrolled = [...live.querySelectorAll(".table")].map((each) => each.scrollLeft);
  live.innerHTML = text;
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  live.querySelectorAll(".table").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  prepare(live);
}

async function refresh(live) {
  const answer = await fetch(location.href, { headers: { "X-Live": live.dataset.live }, cache: "no-store" });
  if (answer.status === 401) location.reload();
  if (answer.status === 200 && answer.headers.has("X-Live")) {
    live.dataset.live = answer.headers.get("X-Live");
    replace(live, await answer.text());
  }
  return answer.ok;
}

function keepFresh(live) {
  const stale = document.querySelector("[data-stale]");
  let failures = 0;
  const turn = async () => {
    if (document.visibilityState === "visible" && !live.querySelector("[data-hold]")) {
      const fresh = await refresh(live).catch(() => false);
      failures = fresh ? 0 : failures + 1;
      stale.textContent = failures > 1 ? " · The service does not answer; what you see may be old." : "";
    }
    setTimeout(turn, 1000 * LIVE_SECONDS * Math.min(1 + failures, 15));
  };
  setTimeout(turn, 1000 * LIVE_SECONDS);
}

function offerCopy(root) {
  for (const block of root.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy quiet";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
}

function applyAtOnce(form) {
  let timer = 0;
  const submit = () => form.requestSubmit();
  form.querySelector("button").hidden = true;
  form.addEventListener("change", submit);
  form.addEventListener("input", (event) => {
    if (event.target.type !== "search") return;
    clearTimeout(timer);
    timer = setTimeout(submit, 600);
  });
  form.addEventListener("submit", () => clearTimeout(timer));
}

function prepare(root) {
  tellTimes(root);
  offerCopy(root);
}

prepare(document);
document.querySelectorAll("form[data-instant]").forEach(applyAtOnce);
document.querySelectorAll("[data-live]").forEach(keepFresh);
setInterval(() => tellTimes(document), 5000);
