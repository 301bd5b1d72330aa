// Refreshes live parts, shows relative times, copies commands, and applies filters immediately. Pages work without it.
"use strict";

const LIVE_SECONDS = 2;

function ago(element) {
  const seconds = Math.round((Date.now() - Date.parse(element.dateTime)) / 1000);
  const past = Math.abs(seconds);
  const [size, unit] = past < 90 ? [1, "second"] : past < 5400 ? [60, "minute"] : past < 129600 ? [3600, "hour"] : [86400, "day"];
  const format = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
  if (!element.title) element.title = element.textContent.trim();
  element.textContent = format.format(-Math.round(seconds / size), unit);
}

function showRelativeTimes(root) {
  for (const each of root.querySelectorAll("time[data-ago]")) ago(each);
}

// Keeps the focus, open details and scroll positions.
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
  const response = await fetch(location.href, { headers: { "X-Live": live.dataset.live }, cache: "no-store" });
  if (response.status === 401) location.reload();
  if (response.status === 200 && response.headers.has("X-Live")) {
    live.dataset.live = response.headers.get("X-Live");
    replace(live, await response.text());
  }
  return response.ok;
}

function autoRefresh(live) {
  const stale = document.querySelector("[data-stale]");
  let failures = 0;
  const poll = async () => {
    if (document.visibilityState === "visible" && !live.querySelector("[data-hold]")) {
      const fresh = await refresh(live).catch(() => false);
      failures = fresh ? 0 : failures + 1;
      stale.textContent = failures > 1 ? " · The service does not respond. This page may be outdated." : "";
    }
    setTimeout(poll, 1000 * LIVE_SECONDS * Math.min(1 + failures, 15));
  };
  setTimeout(poll, 1000 * LIVE_SECONDS);
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

function applyImmediately(form) {
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
  showRelativeTimes(root);
  offerCopy(root);
}

prepare(document);
document.querySelectorAll("form[data-instant]").forEach(applyImmediately);
document.querySelectorAll("[data-live]").forEach(autoRefresh);
setInterval(() => showRelativeTimes(document), 5000);
