// The page: what is asked for, the search, and what is said when there is nothing to show.
import * as address from "./address.js";
import { listen, pick, picture, unpick } from "./picture.js";
import * as player from "./player.js";
import { callToy, cards, markCard, neighbour, show, showGhosts } from "./results.js";
import { $, Refusal, ask, count, make, plural } from "./tools.js";

const form = document.querySelector("form"), field = name => form.elements[name];
const NAMES = ["also", "not", "folder", "lasts", "least_height", "after", "before", "speech", "said"], STEP = 24, MOST = 100;
const SENTENCES = ["also", "not", "said"];  // the others leave some videos out, whatever is looked for
const TOY = ["pink scissors by the sea and the word PUZZLE", "a red ampersand inside a room and the word PARROT", "a white play button in the city and a sign that says BEAVER"];  // in the demo's videos
let running = null, hits = [], wanted = null, told = null, info = null, opened = "", like = null;

// ---- what is asked for

const filters = () => Object.fromEntries(NAMES.map(name => [name, field(name).value.trim()]).filter(([, value]) => value));
const words = () => $("query").value.trim() || field("also").value.trim();

/** The parameters of the server's search, from the fields. */
function parameters() {
  const chosen = filters(), query = new URLSearchParams();
  if (!like) {
    for (const sentence of [$("query").value.trim(), chosen.also]) if (sentence) query.append("q", sentence);
    if (chosen.not) query.append("not", chosen.not);
    if (chosen.said) query.set("said", chosen.said);
  }
  for (const name of ["folder", "least_height", "after", "before", "speech"]) if (chosen[name]) query.set(name, chosen[name]);
  if (chosen.lasts) {
    const [shortest, longest] = chosen.lasts.split("-");
    if (shortest) query.set("shortest", shortest);
    if (longest) query.set("longest", longest);
  }
  return query;
}

/** The search as the address holds it. A picture is not part of it. */
function searched() {
  const query = new URLSearchParams(), sentence = $("query").value.trim();
  if (sentence) query.set("q", sentence);
  for (const [name, value] of Object.entries(filters())) query.set(name, value);
  if (like) query.set("like", like.video);
  return query;
}

function restore() {
  const query = new URLSearchParams(location.search);
  $("query").value = query.get("q") ?? "";
  const folder = query.get("folder");
  if (folder) offerFolders([folder]);
  for (const name of NAMES) field(name).value = query.get(name) ?? "";
  $("filters").open ||= NAMES.some(name => query.has(name));
  countFilters();
  setLike(address.like() ? { video: address.like(), name: "" } : null);
}

/** Look for videos like one of the index instead of for words; null ends that. */
function setLike(video) {
  like = video;
  $("like").hidden = !like;
  $("alike").textContent = like ? "like " + (like.name || "this video") : ""; $("alike").title = like?.name ?? "";
  if (like && !like.name) ask("/api/videos/" + like.video).then(about => {
    if (like !== video) return;
    setLike({ ...video, name: about.name });
    if (told?.alike) list();
  }, () => {});
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

/** Search for what the visitor has just asked for. */
function search() {
  address.search(searched());
  start();
}

/** Do the search, or say what can be done here if there is none. Then open the video that the address names. */
async function start() {
  running?.abort();
  player.close();
  hits = []; told = wanted = null;
  $("doubt").textContent = "";
  if (!like && !words() && !picture()) { running = null; say(""); welcome(); return follow(); }
  const query = parameters(), path = like ? "/api/videos/" + like.video + "/similar" : picture() ? "/api/search/image" : "/api/search";
  const options = picture() && !like ? { method: "POST", body: picture(), headers: { "Content-Type": picture().type } } : {};
  wanted = top => [path + "?" + query + "&top=" + top, options];
  if (await run(STEP)) follow();
}

const alike = () => "like " + (like?.name || "this video");

/** Show the first results; false if another search came in between. */
async function run(top, quiet = false) {
  running?.abort();
  const mine = running = new AbortController(), started = performance.now(), [path, options] = wanted(top);
  const note = like ? alike() : picture() && !words() ? "by this picture" : "";
  // Every video is a result, unless a filter leaves some out.
  const whole = !Object.keys(filters()).some(name => name === "said" || !SENTENCES.includes(name));
  say(note ? "Searching " + note + " …" : "Searching …");
  $("state").hidden = true; $("more").hidden = true;
  if (!quiet) showGhosts();
  try {
    hits = await ask(path, { ...options, signal: mine.signal }, () => say("The server is busy. Trying again …"));
    if (mine !== running) return false;
    told = { top, note, whole, alike: !!like, took: performance.now() - started };
    list();
    if (!hits.length) nothing();
  } catch (error) {
    if (mine !== running || error.name === "AbortError") return false;
    fail(error, async () => { if (await run(top)) follow(); });
  }
  return true;
}

/** Draw the results, and say how many there are. */
function list() {
  show(hits, open);
  markCard(opened);
  const { top, took } = told, note = told.alike ? alike() : told.note, most = info && told.whole ? info.videos - told.alike : null;
  const further = hits.length >= top && !(most !== null && most <= hits.length);
  const some = most === null ? "The first " + plural(hits.length, "video") : count(hits.length) + " of " + plural(most, "video");
  say(hits.length ? (further ? some : plural(hits.length, "video")) + (note ? " " + note : "") + " in " + Math.round(took) + " ms" : "");
  $("sorted").textContent = further ? "Sort these " + hits.length + " by" : "Sort by";
  $("more").hidden = !further || top >= MOST;
  $("more").onclick = () => run(Math.min(MOST, top * 2), true);
  $("doubt").textContent = hits.length && hits.every(hit => hit.match === "weak") ? "Nothing here clearly matches; these are the nearest." : "";
}

/** A sentence or two on how well a hit matches. */
function why(hit) {
  if (hit.score === undefined) return "";
  const score = "Its score of " + hit.score.toFixed(3);
  const text = {
    strong: "Strong match. " + score + " is far above what other videos here get for this.",
    likely: "Likely match. " + score + " is above what other videos here get for this.",
    weak: "Weak match. " + score + " is what any video here gets for this: it may only be the nearest there is.",
    said: "The words are said here.",
  }[hit.match] ?? score + " cannot be judged: the index holds too few videos.";
  return text + (info?.notice && hit.match !== "said" ? " A toy model says so: it counts for the demo's videos only." : "");
}

// ---- the open video

/** Open a hit that the visitor has chosen. */
function open(hit) {
  address.open(hit.video, hit.start);
  enter(hit, { playing: true });
}

function enter(hit, how) {
  opened = hit.video;
  markCard(opened);
  player.open(hit, why(hit), how).catch(error => say(error.message, true));
}

/** Open or close the player as the address says, after a step in the history or when the page is loaded. */
async function follow() {
  const asked = address.opened();
  if (!asked) return player.current() && closePlayer();
  const hit = hits.find(each => each.video === asked.video) ?? await unlisted(asked).catch(() => null);
  if (hit && address.opened()?.video === asked.video && player.current()?.video !== asked.video) enter(hit, { at: asked.at });
}

/** A video that is not among the results, in the form of a hit. */
async function unlisted({ video, at }) {
  const about = await ask("/api/videos/" + video), start = Math.min(at ?? 0, about.duration);
  const segment = about.segments.find(each => each.start <= start && start < each.end);
  return { video, path: about.name, duration: about.duration, width: about.width, height: about.height, start, end: segment?.end ?? about.duration, segment: 0 };
}

function closePlayer() {
  player.close();
  address.close();
  (markCard(opened) ?? $("query")).focus();
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
  delete box.dataset.nothing; delete box.dataset.welcome;
  $("results").replaceChildren(); $("results").removeAttribute("aria-busy");
  $("sorting").hidden = true; $("more").hidden = true; $("doubt").textContent = "";
}

function fail(error, again) {
  if (!(error instanceof Refusal)) throw error;
  const actions = [["Try again", again]], { folder } = filters();
  if (error.status === 400 && folder) actions.unshift(["Search all folders", () => { field("folder").value = ""; countFilters(); search(); }]);
  if (error.status === 404 && like) actions.unshift(["Search by words", unlike]);
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

/** What can be done here. A toy model gets sentences that it knows. */
function welcome() {
  const way = " You can also paste a picture, or drop one anywhere.";
  const actions = info?.notice ? TOY.map(sentence => [sentence, () => { $("query").value = sentence; search(); }]) : [];
  const text = info?.notice ? "This toy model knows the drawn videos of the demo only. Try one of these:"
    : "A sentence about what can be seen works best" + (info ? ", such as “a dog jumps into a lake”." : ".") + way;
  state("Describe what you are looking for", text, { actions });
  $("state").dataset.welcome = "";
}

// ---- the rest of the page

function clear() {
  for (const name of NAMES) field(name).value = "";
  countFilters();
  if (wanted) search();
}

function unlike() {
  setLike(null);
  $("query").focus();
  search();
}

async function take(file) {
  if (await pick(file)) { setLike(null); return search(); }
  say("This file is not a picture that the browser can read.", true);
}

function theme(chosen) {
  const root = document.documentElement, dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (chosen) { root.dataset.theme = dark() ? "light" : "dark"; try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds for this visit */ } }
  $("theme").textContent = dark() ? "☀ Light" : "☾ Dark";
  $("theme").setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
}

form.addEventListener("submit", event => { event.preventDefault(); setLike(null); search(); });
form.addEventListener("change", event => {
  const { name } = event.target;
  if (!NAMES.includes(name)) return;
  countFilters();
  if (SENTENCES.includes(name)) setLike(null);
  if (wanted) search();
});
$("sort").onchange = () => { show(hits, open); markCard(opened); };
$("clear").onclick = clear;
$("unpick").onclick = () => { unpick(); $("query").focus(); search(); };
$("unlike").onclick = unlike;
$("similar").onclick = () => {
  const hit = player.current();
  if (!hit) return;
  unpick();
  setLike({ video: hit.video, name: hit.path });
  search();
  $("unlike").focus();
};
$("view").addEventListener("jump", event => address.open(player.current().video, event.detail));
$("theme").onclick = () => theme(true);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
$("close").onclick = closePlayer;
addEventListener("popstate", () => {
  if (!address.isOtherSearch()) return follow();
  restore(); unpick(); start();
});
addEventListener("keydown", event => {
  const active = document.activeElement, typing = active === $("query") || active === $("unlike"), inCard = active.classList.contains("card"), all = cards();
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
address.dropToken();
offerFolders([]);
restore();
start();
ask("/api/info").then(about => {
  info = about;
  $("about").textContent = [plural(about.videos, "video"), about.backbone, about.allocator, "budget " + about.budget].join(" · ");
  $("notice").textContent = about.notice ?? ""; $("notice").hidden = !about.notice;
  callToy(!!about.notice);
  if (hits.length) list();
  if (!$("state").hidden && "welcome" in $("state").dataset) welcome();
  if (!$("state").hidden && "nothing" in $("state").dataset) nothing();  // which came before it was known how many videos there are
  document.querySelectorAll("[data-lines]").forEach(each => { each.hidden = !about.lines; });
  offerFolders(about.folders ?? []);
}).catch(error => { if (!$("status").textContent) fail(error, () => location.reload()); });
