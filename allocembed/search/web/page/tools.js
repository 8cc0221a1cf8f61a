// Small things that all parts of the page use.

export const $ = id => document.getElementById(id);

/** An element with a text and a class. */
export function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
}

const two = number => String(number).padStart(2, "0");

/** Seconds as 1:02:03 or 02:03, or with tenths as 02:03.4. */
export function clock(seconds, tenths = false) {
  const exact = Math.max(0, seconds) + 1e-6, whole = Math.floor(exact), hours = Math.floor(whole / 3600);
  const rest = tenths ? "." + Math.floor(10 * (exact - whole)) : "";
  return (hours ? hours + ":" : "") + two(Math.floor(whole / 60) % 60) + ":" + two(whole % 60) + rest;
}

/** From when to when. Whole seconds would say too little of a short time. */
export function span(part, between = "–") {
  const short = part.end - part.start < 5;
  return clock(part.start, short) + between + clock(part.end, short);
}
export const count = number => number.toLocaleString("en");
export const plural = (number, word) => count(number) + " " + word + (number === 1 ? "" : "s");

/** An answer of the server that is no result. `status` is 0 if there was no answer at all. */
export class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

/** What an answer that is no result says. */
export async function refusal(reply) {
  const body = await reply.json().catch(() => ({}));
  return new Refusal(reply.status, typeof body.detail === "string" ? body.detail : "The server refused this (" + reply.status + ").");
}

const pause = (seconds, signal) => new Promise((done, stop) => {
  const timer = setTimeout(done, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); stop(signal.reason); }, { once: true });
});

/** JSON from the server. If it is busy, ask again a few times; `waiting` is called before each wait. */
export async function ask(path, options = {}, waiting = () => {}) {
  for (let attempt = 0; ; attempt++) {
    let reply;
    try { reply = await fetch(path, options); } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The server does not answer.");
    }
    if (reply.status === 503 && attempt < 4) {
      waiting();
      await pause(Math.min(Number(reply.headers.get("Retry-After")) || 1, 5), options.signal);
      continue;
    }
    if (!reply.ok) throw await refusal(reply);
    return reply.json().catch(() => ({}));
  }
}
