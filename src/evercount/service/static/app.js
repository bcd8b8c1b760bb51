// The dashboard: addresses (#/stream/name/cell/view, #/compare/…, #/planner), the list of streams, access, theme. No build step, no framework.

import { ServiceError, listStreams, setToken, token } from "./api.js";
import { ComparePage } from "./compare.js";
import { byId, element, setText } from "./format.js";
import { Planner } from "./planner.js";
import { StreamPage } from "./stream.js";
import { firstView } from "./views.js";

const EMPTY_AGAIN = 5000;
const page = new StreamPage({ onRefused: refused, onCell: remember, onView: remember });
const comparison = new ComparePage({ onRefused: refused, onAddress: (parts) => history.replaceState(null, "", link("compare", ...parts)) });
const planner = new Planner();
let streams = [];
let ledger = null;
let retry = 0;

function address() {
  const [first = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  return { first, rest };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a stray percent sign typed by hand
  }
}

const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Keep the picked cell (and a view that was chosen) in the address, so that it can be shared and reloaded. */
function remember() {
  const chosen = page.spans.view !== firstView(page.facts) ? [page.spans.view] : [];
  history.replaceState(null, "", link("stream", page.name, page.history.labels[page.cell], ...chosen));
}

/** The address of the chart that other sites may embed. */
function embedAddress() {
  const parts = [page.name, page.history.labels[page.cell], page.spans.view];
  return `${new URL("embed", document.baseURI).href}#/${parts.map(encodeURIComponent).join("/")}`;
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    setText(byId("share-note"), `${what} copied.`);
  } catch {
    setText(byId("share-note"), text); // no clipboard here: show it
  }
}

/** Say something instead of (or above) the stream; null takes it away. */
function message(title, text, ...extra) {
  const box = byId("message");
  box.hidden = title === null;
  box.replaceChildren(...(title === null ? [] : [element("h2", {}, title), element("p", {}, text), ...extra]));
}

function refused(error) {
  byId("stream-page").hidden = true;
  if (error.denied || error.status === 404) {
    message(error.denied ? "No access" : "Stream not found", sentence(error.message), openAccess());
    return;
  }
  const again = element("button", { type: "button", class: "primary" }, "Try again");
  again.addEventListener("click", () => route());
  message("The stream cannot be shown", `${sentence(error.message)} ${error.remedy}`, again);
  clearTimeout(retry);
  retry = setTimeout(route, EMPTY_AGAIN);
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

function openAccess() {
  const button = element("button", { type: "button", class: "primary" }, "Enter a token");
  button.addEventListener("click", () => {
    byId("token-menu").open = true;
    byId("token").focus();
  });
  return button;
}

async function loadStreams() {
  ({ streams, ledger } = await listStreams());
  const select = byId("stream-select");
  select.replaceChildren(
    ...streams.map((facts) => element("option", { value: facts.name }, facts.public === false ? `${facts.name} (token)` : facts.name)),
  );
  byId("picker").hidden = streams.length === 0;
}

async function route() {
  clearTimeout(retry);
  const { first, rest } = address();
  const planning = first === "planner";
  const comparing = first === "compare";
  byId("planner-page").hidden = !planning;
  byId("compare-page").hidden = !comparing;
  for (const [id, here] of [["nav-planner", planning], ["nav-compare", comparing], ["nav-stream", !planning && !comparing]]) {
    if (here) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  message(null);
  if (planning) {
    page.close();
    byId("stream-page").hidden = true;
    byId("picker").hidden = true;
    document.title = "Planner · evercount";
    comparison.close();
    planner.open();
    return;
  }
  planner.close();
  if (comparing) {
    page.close();
    byId("stream-page").hidden = true;
    byId("picker").hidden = true;
    await comparison.open(rest);
    return;
  }
  comparison.close();
  try {
    await loadStreams();
  } catch (error) {
    refused(error);
    return;
  }
  const name = first === "stream" && rest[0] ? rest[0] : streams[0]?.name;
  if (!name) {
    byId("stream-page").hidden = true;
    document.title = "evercount";
    message("No stream yet", "A stream is declared in the service's TOML file or by POST to v1/streams, and appears here by itself. Streams that are not public need a token.", openAccess());
    retry = setTimeout(route, EMPTY_AGAIN);
    return;
  }
  byId("stream-select").value = name;
  if (!streams.some((facts) => facts.name === name)) {
    page.close();
    refused(new ServiceError(404, `${token() ? "With this token" : "Without a token"}, no stream called ${name} can be read.`));
    return;
  }
  if (page.name !== name || !page.history) await page.open(name, rest[1], ledger, rest[2]);
  else if (rest[1] && page.history.labels.includes(rest[1])) page.pick(page.history.labels.indexOf(rest[1]));
}

function themeButton() {
  const dark = document.documentElement.dataset.theme === "dark";
  setText(byId("theme"), dark ? "Light" : "Dark");
  byId("theme").setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
}

byId("copy-link").addEventListener("click", () => copy(location.href, "Link"));
byId("copy-embed").addEventListener("click", () =>
  copy(`<iframe src="${embedAddress()}" width="640" height="420" title="${page.name}" loading="lazy"></iframe>`, "Code"),
);
byId("compare-link").addEventListener("click", () => {
  location.hash = link("compare", page.name, page.history.labels[page.cell]);
});
byId("stream-select").addEventListener("change", (event) => {
  location.hash = link("stream", event.target.value);
});
byId("token").value = token() ?? "";
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value.trim() || null);
  byId("token-menu").open = false;
  page.close();
  route();
});
byId("token-clear").addEventListener("click", () => {
  setToken(null);
  byId("token").value = "";
  byId("token-menu").open = false;
  page.close();
  route();
});
byId("token-menu").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  byId("token-menu").open = false;
  byId("token-menu").firstElementChild.focus();
});
document.addEventListener("click", (event) => {
  if (!byId("token-menu").contains(event.target) && !event.target.closest("#message")) byId("token-menu").open = false;
});
for (const skip of document.querySelectorAll("a.skip, a.skip-local")) {
  skip.addEventListener("click", (event) => {
    event.preventDefault(); // the hash is the page's address
    document.querySelector(skip.getAttribute("href")).focus();
  });
}
byId("theme").addEventListener("click", () => window.toggleTheme());
document.addEventListener("themechange", themeButton);
addEventListener("hashchange", route);
themeButton();
route();
// What is drawn, for tests and for whoever opens the console: public numbers only.
window.evercount = { page, planner, comparison };
