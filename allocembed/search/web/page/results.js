// The list of videos: cards, their order, and the places of cards that are still on their way.
import { $, count, make, span } from "./tools.js";

const LEVELS = { strong: 3, likely: 2, weak: 1 };
const WORDS = { strong: "Strong match", likely: "Likely match", weak: "Weak match", said: "Was said" };
let toy = false;

/** Say with each score that a toy model gave it. */
export function callToy(is) { toy = is; }

/** How well a hit matches, in words. */
export const words = hit => (WORDS[hit.match] ?? "") + (toy && hit.match && hit.match !== "said" ? " (toy)" : "");
const ORDERS = {
  best: () => 0,  // as the server sent them
  newest: (a, b) => b.changed - a.changed,
  oldest: (a, b) => a.changed - b.changed,
  longest: (a, b) => b.duration - a.duration,
  shortest: (a, b) => a.duration - b.duration,
  name: (a, b) => a.path.localeCompare(b.path, undefined, { numeric: true }),
};

/** How well a hit matches, as three bars and in words. */
export function match(hit) {
  const shown = make("span", "", "match");
  if (LEVELS[hit.match]) for (let bar = 1; bar <= 3; bar++) shown.append(make("i", "", bar <= LEVELS[hit.match] ? "on" : ""));
  shown.append(make("span", words(hit)));
  return shown;
}

/** The address of the one whole frame that stands for a hit. */
export const poster = hit => "/api/videos/" + hit.video + (hit.segment ? "/segments/" + hit.segment + ".jpg" : "/poster.jpg");

function card(hit, open) {
  const item = make("li"), button = make("button", "", "card"), shot = make("span", "", "shot"), text = make("span", "", "text");
  const picture = new Image(), meta = make("span", "", "meta"), title = make("b", hit.path);
  button.type = "button"; button.dataset.video = hit.video;
  button.setAttribute("aria-label", [hit.path, span(hit, " to "), words(hit), hit.line && "said: " + hit.line].filter(Boolean).join(", "));
  picture.alt = ""; picture.loading = "lazy"; picture.src = poster(hit);
  shot.append(picture);
  if (hit.copies) shot.append(make("span", "+ " + count(hit.copies) + (hit.copies === 1 ? " copy" : " copies"), "copies"));
  title.title = hit.folder ? hit.folder + "/" + hit.path : hit.path;
  text.append(title);
  if (hit.line) text.append(make("span", "“" + hit.line + "”", "quote"));
  meta.append(make("span", span(hit), "time"), make("span", count(hit.cost) + " tokens"), match(hit));
  text.append(meta);
  button.append(shot, text);
  button.onclick = () => open(hit);
  item.append(button);
  return item;
}

/** Show hits in the chosen order. */
export function show(hits, open) {
  const order = ORDERS[$("sort").value] ?? ORDERS.best;
  $("results").replaceChildren(...[...hits].sort(order).map(hit => card(hit, open)));
  $("results").removeAttribute("aria-busy");
  $("sorting").hidden = hits.length < 2;
}

/** Mark the card of the video that was opened last, and return it if there is one. */
export function markCard(video) {
  for (const each of cards()) each.dataset.video === video ? each.setAttribute("aria-current", "true") : each.removeAttribute("aria-current");
  return cards().find(each => each.dataset.video === video);
}

/** Grey cards while a search runs. */
export function showGhosts() {
  const ghosts = Array.from({ length: 6 }, () => {
    const item = make("li"), ghost = make("div", "", "card ghost"), text = make("span", "", "text");
    text.append(make("span", "\u00a0"), make("span", "\u00a0"));
    ghost.append(make("span", "", "shot"), text);
    item.append(ghost); item.setAttribute("aria-hidden", "true");
    return item;
  });
  $("results").replaceChildren(...ghosts);
  $("results").setAttribute("aria-busy", "true");
}

export const cards = () => [...document.querySelectorAll("#results button.card")];

/** The card that an arrow key leads to: sideways one, up and down to the card nearest in the next row. */
export function neighbour(from, key) {
  const all = cards(), at = all.indexOf(from), box = from.getBoundingClientRect();
  if (key === "ArrowRight" || key === "ArrowLeft") return all[at + (key === "ArrowRight" ? 1 : -1)];
  const down = key === "ArrowDown", row = all.filter(e => { const top = e.getBoundingClientRect().top; return down ? top > box.top + 5 : top < box.top - 5; });
  const middle = e => { const b = e.getBoundingClientRect(); return Math.abs(b.top - box.top) * 10 + Math.abs(b.left - box.left); };
  return row.sort((a, b) => middle(a) - middle(b))[0];
}
