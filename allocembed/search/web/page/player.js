// The opened hit: the player at its moment, what is said, the segments, the budget and the filmstrip.
import { offer } from "./clip.js";
import { $, Refusal, ask, clock, count, make, plural, refusal, span } from "./tools.js";

const player = $("player"), still = $("still");
let shown = null, moment = null, chunks = [], aim = 0, stayed = false;

export const current = () => shown;

/** Whether a hit is a GIF, which the browser shows as a picture: it moves by itself and has no times to go to. */
const isPicture = hit => /\.gif$/i.test(hit.path);

function seek(seconds) {
  aim = seconds;
  if (player.readyState) player.currentTime = seconds;
}

const play = () => player.play().catch(() => {});  // a browser may refuse to; then the visitor starts it

/** Go where the visitor has pointed, and say so to the page. */
function jump(seconds) {
  stayed = false;
  seek(seconds); play();
  $("view").dispatchEvent(new CustomEvent("jump", { detail: seconds }));
}

export function close() {
  $("view").hidden = true;
  player.removeAttribute("src"); player.load(); still.removeAttribute("src");
  shown = moment = null; chunks = [];
}

/** Open a hit at its moment, or at another second; `why` says in a sentence how well it matches. */
export async function open(hit, why, { at = null, playing = false } = {}) {
  const elsewhere = at !== null && Math.abs(at - hit.start) > 0.05, file = "/api/videos/" + hit.video + "/file";
  if (elsewhere) at = Math.min(at, hit.duration);
  shown = hit; chunks = []; stayed = true;
  moment = elsewhere ? { start: at, end: at > hit.start && at < hit.end ? hit.end : Math.max(at + 1, Math.min(hit.duration, at + 10)) } : hit;
  $("view").hidden = false;
  $("unplayable").hidden = true;
  $("said").hidden = true;
  for (const part of ["moments", "budget", "film", "lines"]) $(part).replaceChildren();
  $("spent").textContent = ""; $("refused").textContent = "";
  $("name").textContent = hit.path; $("name").title = hit.path;
  $("why").textContent = why; $("why").hidden = !why;
  player.hidden = isPicture(hit); still.hidden = !isPicture(hit);
  if (isPicture(hit)) {
    player.removeAttribute("src"); player.load();
    still.src = file; still.alt = "The moving picture " + hit.path;
  } else {
    still.removeAttribute("src");
    player.src = file;
    seek(moment.start);
    if (playing) play();
  }
  point(hit);
  if (!elsewhere) look(hit);
  $("view").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  $("view").focus({ preventScroll: true });
  const about = await ask("/api/videos/" + hit.video);
  if (shown !== hit) return;
  draw(about, hit);
  const lines = await ask("/api/videos/" + hit.video + "/lines").catch(error => { if (error instanceof Refusal) return []; throw error; });
  if (shown === hit) drawLines(lines, hit);
}

/** Name the moment of a hit, and offer it as a clip. */
function point(hit, note = "") {
  const where = [hit.folder, hit.width && hit.width + " × " + hit.height, hit.changed && new Date(1000 * hit.changed).toLocaleDateString("en-GB", { dateStyle: "medium" })];
  $("when").textContent = ["moment " + span(moment) + " of " + clock(hit.duration, hit.duration < 5) + note, ...where].filter(Boolean).join(" · ");
  const times = "/clip?start=" + moment.start.toFixed(2) + "&end=" + moment.end.toFixed(2);
  offer("/api/videos/" + hit.video + times, isPicture(hit) ? "Download the GIF" : "Download the moment");
}

/** Let the server look at the moment more closely, and go there unless the visitor has gone elsewhere meanwhile. */
async function look(hit) {
  // A line has its time already; what matches by chance only has no moment to look for; a GIF cannot be sent anywhere.
  if (!hit.query || hit.line || hit.match === "weak" || isPicture(hit)) return;
  point(hit, ", looking closer …");
  const found = await ask("/api/videos/" + hit.video + "/moment?query=" + hit.query).catch(() => ({}));
  if (shown !== hit) return;
  // A moment outside of the card's segment would contradict the card.
  const fits = found.found && found.start < hit.end && found.end > hit.start;
  if (fits) moment = { start: found.start, end: found.end };
  point(hit);
  if (!fits) return;
  highlight();
  const now = player.readyState ? player.currentTime : aim;
  const seen = !player.paused && hit.start <= moment.start && moment.start <= now && now < moment.end;
  if (stayed && now <= hit.end && !seen) seek(moment.start);
}

/** Mark the frames of the moment. */
function highlight() {
  const frames = [...$("film").children];
  if (!frames.length) return;
  const within = chunks.map(chunk => chunk.times[0] < moment.end && chunk.times.at(-1) >= moment.start);
  if (!within.includes(true)) within[Math.max(0, chunks.findLastIndex(chunk => chunk.times[0] <= moment.start))] = true;  // it lies between two chunks
  frames.forEach((button, place) => button.classList.toggle("now", within[place]));
  const now = frames[within.indexOf(true)];
  $("film").scrollLeft = now.offsetLeft - $("film").offsetLeft - ($("film").clientWidth - now.offsetWidth) / 2;
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
  $("film").replaceChildren(...chunks.map((chunk, place) => frame(about, chunk, place)));
  highlight();
  $("moments").replaceChildren(...about.segments.map(segment => {
    const best = segment.number === hit.segment, button = make("button", "", best ? "best" : "");
    button.type = "button";
    button.title = span(segment) + ", " + segment.cost + " tokens" + (best ? ": the best match" : "");
    button.setAttribute("aria-label", "Play " + span(segment) + (best ? ", the best match" : ""));
    button.onclick = () => jump(segment.start);
    return button;
  }));
  for (const button of $("view").querySelectorAll(".tokens button")) button.disabled = isPicture(hit);
}

function frame(about, chunk, place) {
  const button = make("button"), picture = make("span", "", "frame"), time = chunk.times[0], shown = about.duration < 5 ? time.toFixed(1) + " s" : clock(time);
  button.type = "button"; button.style.setProperty("--c", chunk.colour);
  button.title = shown + ": " + chunk.scale.toFixed(2) + "× resolution, " + chunk.rows + "×" + chunk.cols + ", " + chunk.tokens + " tokens";
  button.setAttribute("aria-label", "Play from " + shown + ": " + chunk.scale.toFixed(2) + " times the resolution, " + plural(chunk.tokens, "token"));
  picture.style.aspectRatio = about.width && about.height ? about.width + " / " + about.height : "4 / 3";
  picture.style.backgroundImage = "url(/api/videos/" + about.video + "/film.jpg)";
  picture.style.backgroundSize = 100 * chunks.length + "% 100%";
  picture.style.backgroundPosition = (chunks.length > 1 ? 100 * place / (chunks.length - 1) : 0) + "% 0";
  button.append(picture, make("span", shown + " · " + chunk.scale.toFixed(2) + "×", "label"));
  button.onclick = () => jump(time);
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
player.addEventListener("loadedmetadata", () => { player.currentTime = aim; });
player.addEventListener("seeking", () => { if (Math.abs(player.currentTime - aim) > 0.3) stayed = false; });
player.addEventListener("pause", () => { stayed = false; });  // to look at what is there
$("view").addEventListener("keydown", event => {
  const used = event.target.closest("button, video, ol");  // which do something else with it
  if (event.key !== " " || event.ctrlKey || event.metaKey || event.altKey || used || !player.getAttribute("src")) return;
  event.preventDefault();
  player.paused ? play() : player.pause();
});

async function explain() {
  const hit = shown;
  if (!hit || !(player.getAttribute("src") || still.getAttribute("src"))) return;
  const reason = await fetch("/api/videos/" + hit.video + "/file", { headers: { Range: "bytes=0-0" } })
    .then(async reply => reply.ok ? "" : (await refusal(reply)).message, () => "the server does not answer");
  if (shown !== hit) return;
  const kind = isPicture(hit) ? "picture. Download it" : "file. Download the moment";
  $("unplayable").textContent = reason ? "Cannot play it: " + reason + "." : "This browser cannot play this kind of " + kind + " and open it in a player.";
  $("unplayable").hidden = false;
}
player.addEventListener("error", explain);
still.addEventListener("error", explain);
