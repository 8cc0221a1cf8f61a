// The opened hit: the player at its moment, what is said, the segments, the budget and the filmstrip.
import { $, Refusal, ask, clock, count, make, plural, span } from "./tools.js";

const player = $("player");
let shown = null, chunks = [], aim = 0;

export const current = () => shown;

export function jump(seconds) {
  aim = seconds;
  const go = () => { player.currentTime = seconds; };
  player.readyState ? go() : player.addEventListener("loadedmetadata", go, { once: true });
}

export function close() {
  $("view").hidden = true;
  player.removeAttribute("src"); player.load();
  shown = null; chunks = [];
}

/** Open a hit; `why` says in a sentence how well it matches. */
export async function open(hit, why) {
  shown = hit; chunks = [];
  $("view").hidden = false;
  $("unplayable").hidden = true;
  $("said").hidden = true;
  for (const part of ["moments", "budget", "film", "lines"]) $(part).replaceChildren();
  $("spent").textContent = "";
  $("name").textContent = hit.path; $("name").title = hit.path;
  $("why").textContent = why; $("why").hidden = !why;
  player.src = "/api/videos/" + hit.video + "/file";
  point(hit, hit);
  jump(hit.start);
  look(hit);
  $("view").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  $("view").focus({ preventScroll: true });
  const about = await ask("/api/videos/" + hit.video);
  if (shown !== hit) return;
  draw(about, hit);
  const lines = await ask("/api/videos/" + hit.video + "/lines").catch(error => { if (error instanceof Refusal) return []; throw error; });
  if (shown === hit) drawLines(lines, hit);
}

/** Name a moment of a hit, and offer it as a clip. */
function point(hit, moment, note = "") {
  const where = [hit.folder, hit.width && hit.width + " × " + hit.height, hit.changed && new Date(1000 * hit.changed).toLocaleDateString("en-GB", { dateStyle: "medium" })];
  $("when").textContent = ["moment " + span(moment) + " of " + clock(hit.duration) + note, ...where].filter(Boolean).join(" · ");
  $("clip").href = "/api/videos/" + hit.video + "/clip?start=" + moment.start.toFixed(2) + "&end=" + moment.end.toFixed(2);
}

/** Let the server look at the moment more closely, and go there unless the visitor has gone elsewhere meanwhile. */
async function look(hit) {
  if (!hit.query || hit.line) return;
  point(hit, hit, ", looking closer …");
  const moment = await ask("/api/videos/" + hit.video + "/moment?query=" + hit.query).catch(() => ({}));
  if (shown !== hit) return;
  const stayed = player.paused && aim === hit.start && (!player.readyState || Math.abs(player.currentTime - aim) < 0.5);
  const better = moment.found && stayed;
  point(hit, better ? moment : hit);
  if (better) jump(moment.start);
}

function draw(about, hit) {
  const film = about.film, scale = Math.max(film.budget, film.cost);
  chunks = film.chunks;
  $("budget").replaceChildren(...chunks.map(chunk => {
    const part = make("i");
    part.style.width = 100 * chunk.tokens / scale + "%"; part.style.background = chunk.colour;
    return part;
  }));
  const rest = about.segments.length ? ", and " + count(about.cost - film.cost) + " for " + plural(about.segments.length, "segment") : "";
  $("spent").textContent = "Budget: " + count(film.cost) + " of " + count(film.budget) + " tokens for the whole video" + rest;
  $("budget").setAttribute("aria-label", $("spent").textContent);
  $("film").replaceChildren(...chunks.map((chunk, place) => frame(about, hit, chunk, place)));
  const now = $("film").querySelector(".now");
  if (now) $("film").scrollLeft = now.offsetLeft - $("film").offsetLeft - ($("film").clientWidth - now.offsetWidth) / 2;
  $("moments").replaceChildren(...about.segments.map(segment => {
    const best = segment.number === hit.segment, button = make("button", "", best ? "best" : "");
    button.type = "button";
    button.title = span(segment) + ", " + segment.cost + " tokens" + (best ? ": the best match" : "");
    button.setAttribute("aria-label", "Play " + span(segment) + (best ? ", the best match" : ""));
    button.onclick = () => jump(segment.start);
    return button;
  }));
}

function frame(about, hit, chunk, place) {
  const button = make("button"), picture = make("span", "", "frame"), time = chunk.times[0];
  button.type = "button"; button.style.setProperty("--c", chunk.colour);
  button.title = clock(time) + ": " + chunk.scale.toFixed(2) + "× resolution, " + chunk.rows + "×" + chunk.cols + ", " + chunk.tokens + " tokens";
  button.setAttribute("aria-label", "Play from " + clock(time) + ": " + chunk.scale.toFixed(2) + " times the resolution, " + plural(chunk.tokens, "token"));
  picture.style.aspectRatio = about.width && about.height ? about.width + " / " + about.height : "4 / 3";
  picture.style.backgroundImage = "url(/api/videos/" + about.video + "/film.jpg)";
  picture.style.backgroundSize = 100 * chunks.length + "% 100%";
  picture.style.backgroundPosition = (chunks.length > 1 ? 100 * place / (chunks.length - 1) : 0) + "% 0";
  button.append(picture, make("span", clock(time) + " · " + chunk.scale.toFixed(2) + "×", "label"));
  button.onclick = () => jump(time);
  if (time < hit.end && chunk.times[chunk.times.length - 1] >= hit.start) button.className = "now";
  return button;
}

function drawLines(lines, hit) {
  $("said").hidden = !lines.length;
  let best = null;
  $("lines").replaceChildren(...lines.map(line => {
    const item = make("li"), button = make("button"), time = make("time", clock(line.start));
    button.type = "button";
    button.append(time, make("span", line.text));
    button.onclick = () => jump(line.start);
    if (hit.line && line.text === hit.line && (!hit.line_start || Math.abs(line.start - hit.line_start) < 0.5)) { button.className = "hit"; best = item; }
    else if (!best && !hit.line && line.end >= hit.start) best = item;
    item.append(button);
    return item;
  }));
  if (best) $("lines").scrollTop = best.offsetTop - $("lines").offsetTop;
}

player.addEventListener("timeupdate", () => {
  const at = chunks.findLastIndex(chunk => chunk.times[0] <= player.currentTime + 0.05);
  [...$("film").children].forEach((button, place) => button.classList.toggle("playing", place === at));
});
player.addEventListener("error", async () => {
  if (!player.getAttribute("src")) return;
  const hit = shown;
  const reason = await fetch("/api/videos/" + hit.video + "/file", { method: "GET", headers: { Range: "bytes=0-0" } })
    .then(async reply => reply.ok ? "" : (await reply.json()).detail, () => "the server does not answer");
  if (shown !== hit) return;
  $("unplayable").textContent = reason ? "Cannot play it: " + reason + "." : "This browser cannot play this kind of file. Download the moment and open it in a player.";
  $("unplayable").hidden = false;
});
