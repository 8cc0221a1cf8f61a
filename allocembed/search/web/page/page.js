// The page: what is asked for, the search, and what is said when there is nothing to show.
import { listen, pick, picture, unpick } from "./picture.js";
import * as player from "./player.js";
import { callToy, cards, neighbour, show, showGhosts } from "./results.js";
import { $, Refusal, ask, make, plural } from "./tools.js";

const form = document.querySelector("form"), field = name => form.elements[name];
const NAMES = ["also", "not", "folder", "lasts", "least_height", "after", "before", "speech", "said"], STEP = 24, MOST = 100;
let running = null, hits = [], wanted = null, info = null;

// ---- what is asked for

const filters = () => Object.fromEntries(NAMES.map(name => [name, field(name).value.trim()]).filter(([, value]) => value));

/** The parameters of the server's search, from the fields. */
function parameters(top) {
  const chosen = filters(), query = new URLSearchParams();
  for (const sentence of [$("query").value.trim(), chosen.also]) if (sentence) query.append("q", sentence);
  if (chosen.not) query.append("not", chosen.not);
  for (const name of ["folder", "least_height", "after", "before", "speech", "said"]) if (chosen[name]) query.set(name, chosen[name]);
  if (chosen.lasts) {
    const [shortest, longest] = chosen.lasts.split("-");
    if (shortest) query.set("shortest", shortest);
    if (longest) query.set("longest", longest);
  }
  query.set("top", top);
  return query;
}

/** The address of this search, for bookmarks and the back button. A picture is not part of it. */
function address() {
  const query = new URLSearchParams(), words = $("query").value.trim();
  if (words) query.set("q", words);
  for (const [name, value] of Object.entries(filters())) query.set(name, value);
  return query.size ? "?" + query : location.pathname;
}

function restore() {
  const query = new URLSearchParams(location.search);
  $("query").value = query.get("q") ?? "";
  const folder = query.get("folder");
  if (folder) offerFolders([folder]);
  for (const name of NAMES) field(name).value = query.get(name) ?? "";
  $("filters").open ||= NAMES.some(name => query.has(name));
  countFilters();
}

function offerFolders(names) {
  const known = new Set([...field("folder").options].map(option => option.value));
  field("folder").append(...names.filter(name => !known.has(name)).map(name => new Option(name, name)));
  field("folder").closest("label").hidden = field("folder").options.length < 2;
}

function countFilters() {
  const number = Object.keys(filters()).length;
  $("active").textContent = number; $("active").hidden = !number;
  $("active").setAttribute("aria-label", plural(number, "filter") + " set");
}

// ---- the search

function search(keep = false) {
  const words = $("query").value.trim() || field("also").value.trim();
  if (!words && !picture()) return state("Write what the video shows", "Or choose, paste or drop a picture.");
  if (!keep && address() !== (location.search || location.pathname)) history.pushState(null, "", address());
  wanted = top => picture()
    ? ["/api/search/image?" + parameters(top), { method: "POST", body: picture(), headers: { "Content-Type": picture().type } }]
    : ["/api/search?" + parameters(top), {}];
  player.close();
  return run(STEP, picture() && !words ? "by this picture" : "");
}

async function run(top, words, quiet = false) {
  running?.abort();
  const mine = running = new AbortController(), started = performance.now(), [path, options] = wanted(top);
  say(words ? "Searching " + words + " …" : "Searching …");
  $("state").hidden = true; $("more").hidden = true;
  if (!quiet) showGhosts();
  try {
    hits = await ask(path, { ...options, signal: mine.signal }, () => say("The server is busy. Trying again …"));
    if (mine !== running) return;
    show(hits, open);
    $("more").hidden = hits.length < top || top >= MOST;
    $("more").onclick = () => run(Math.min(MOST, top * 2), words, true);
    say(hits.length ? plural(hits.length, "video") + (words ? " " + words : "") + " in " + Math.round(performance.now() - started) + " ms" : "");
    if (!hits.length) nothing();
  } catch (error) { if (error.name !== "AbortError" && mine === running) fail(error, () => run(top, words)); }
}

/** A sentence or two on how well a hit matches. */
function why(hit) {
  const score = "Its score of " + hit.score.toFixed(3);
  const text = {
    strong: "Strong match. " + score + " is far above what other videos here get for this.",
    likely: "Likely match. " + score + " is above what other videos here get for this.",
    weak: "Weak match. " + score + " is what any video here gets for this: it may only be the nearest there is.",
    said: "The words are said here.",
  }[hit.match] ?? score + " cannot be judged: the index holds too few videos.";
  return text + (info?.notice && hit.match !== "said" ? " A toy model says so: it counts for the demo's videos only." : "");
}

function open(hit, button) {
  document.querySelectorAll("#results [aria-current]").forEach(each => each.removeAttribute("aria-current"));
  button.setAttribute("aria-current", "true");
  player.open(hit, why(hit)).catch(error => say(error.message, true));
}

// ---- what is said

function say(text, bad = false) { $("status").textContent = text; $("status").classList.toggle("error", bad); }

/** A box instead of results: a title, a text or a list, and buttons. */
function state(title, text, { bad = false, list = [], actions = [] } = {}) {
  const box = $("state"), parts = [make("h2", title)];
  if (text) parts.push(make("p", text));
  if (list.length) { const made = make("ul"); made.append(...list.map(each => make("li", each))); parts.push(made); }
  if (actions.length) {
    const made = make("div", "", "actions");
    for (const [label, act] of actions) { const button = make("button", label); button.type = "button"; button.onclick = act; made.append(button); }
    parts.push(made);
  }
  box.replaceChildren(...parts);
  box.classList.toggle("bad", bad); box.hidden = false;
  delete box.dataset.nothing;
  $("results").replaceChildren(); $("results").removeAttribute("aria-busy");
  $("sorting").hidden = true; $("more").hidden = true;
}

function fail(error, again) {
  if (!(error instanceof Refusal)) throw error;
  const actions = [["Try again", again]];
  const [title, text] = {
    0: ["The server does not answer", "Check that allocembed serve is still running, and that this machine can reach it."],
    401: ["A token is needed", "Open the page once with ?token=… at the end of its address."],
    503: ["The server is busy", "Too many searches run at the same time. Try again in a moment."],
  }[error.status] ?? ["This cannot be searched", error.message];
  say(title + ".", true);
  state(title, text, { bad: true, actions });
}

function nothing() {
  if (info && !info.videos) return state("The index is empty", "Add videos: allocembed index FOLDER --to " + info.uri);
  say("Nothing found.");
  const list = ["Use other or fewer words: say what can be seen, in a sentence.", "Search by a picture that looks like it: choose, paste or drop one."];
  const actions = [];
  if (Object.keys(filters()).length) { list.unshift("Loosen or clear the filters."); actions.push(["Clear filters", clear]); }
  if (field("said").value === "true") list.unshift("Look in the pictures too, not only in speech.");
  if (info) list.push("Is the video in the index? It holds " + plural(info.videos, "video") + ".");
  state("Nothing found", "", { list, actions });
  $("state").dataset.nothing = "";
}

/** Search if there is something to search for, else say what can be done here. */
function start() {
  if ($("query").value.trim() || field("also").value.trim()) return search(true);
  running?.abort();
  wanted = null;
  player.close();
  say("");
  state("Describe what you are looking for", "A sentence about what can be seen works best, such as “a dog jumps into a lake”. You can also paste a picture, or drop one anywhere.");
}

// ---- the rest of the page

function clear() {
  for (const name of NAMES) field(name).value = "";
  countFilters();
  if (wanted) search();
}

async function take(file) {
  if (await pick(file)) return search();
  say("This file is not a picture that the browser can read.", true);
}

function theme(chosen) {
  const root = document.documentElement, dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (chosen) { root.dataset.theme = dark() ? "light" : "dark"; try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds for this visit */ } }
  $("theme").textContent = dark() ? "☀ Light" : "☾ Dark";
  $("theme").setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
}

form.addEventListener("submit", event => { event.preventDefault(); search(); });
form.addEventListener("change", event => { if (NAMES.includes(event.target.name)) { countFilters(); if (wanted) search(); } });
$("sort").onchange = () => show(hits, open);
$("clear").onclick = clear;
$("unpick").onclick = () => { unpick(); $("query").focus(); start(); };
$("similar").onclick = () => {
  const hit = player.current();
  if (!hit) return;
  wanted = top => ["/api/videos/" + hit.video + "/similar?top=" + top, {}];
  run(STEP, "like " + hit.path);
};
$("theme").onclick = () => theme(true);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
function closePlayer() {
  const from = cards().find(each => each.getAttribute("aria-current"));
  player.close();
  (from ?? $("query")).focus();
}
$("close").onclick = closePlayer;
addEventListener("popstate", () => { restore(); unpick(); start(); });
addEventListener("keydown", event => {
  const active = document.activeElement, typing = active === $("query"), inCard = active.classList.contains("card"), all = cards();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) { event.preventDefault(); $("query").focus(); $("query").select(); }
  else if (event.key === "Escape" && !$("view").hidden) closePlayer();
  else if (event.key === "ArrowDown" && typing && all.length) { event.preventDefault(); all[0].focus(); }
  else if (event.key.startsWith("Arrow") && inCard) {
    event.preventDefault();
    (neighbour(active, event.key) ?? (event.key === "ArrowUp" ? $("query") : active)).focus();
  }
});

theme();
listen(take);
const query = new URLSearchParams(location.search);
if (query.has("token")) { query.delete("token"); history.replaceState(null, "", query.size ? "?" + query : location.pathname); }  // the cookie has it now
offerFolders([]);
restore();
start();
ask("/api/info").then(about => {
  info = about;
  $("about").textContent = [plural(about.videos, "video"), about.backbone, about.allocator, "budget " + about.budget].join(" · ");
  $("notice").textContent = about.notice ?? ""; $("notice").hidden = !about.notice;
  callToy(!!about.notice);
  if (about.notice && hits.length) show(hits, open);
  if (!$("state").hidden && "nothing" in $("state").dataset) nothing();  // which came before it was known how many videos there are
  document.querySelectorAll("[data-lines]").forEach(each => { each.hidden = !about.lines; });
  offerFolders(about.folders ?? []);
}).catch(error => { if (!$("status").textContent) fail(error, () => location.reload()); });
