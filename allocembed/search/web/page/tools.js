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

/** Seconds as 1:02:03 or 02:03. */
export function clock(seconds) {
  const whole = Math.floor(Math.max(0, seconds) + 1e-6), hours = Math.floor(whole / 3600);
  return (hours ? hours + ":" : "") + two(Math.floor(whole / 60) % 60) + ":" + two(whole % 60);
}

export const span = part => clock(part.start) + "–" + clock(part.end);
export const count = number => number.toLocaleString("en");
export const plural = (number, word) => count(number) + " " + word + (number === 1 ? "" : "s");

/** An answer of the server that is no result. `status` is 0 if there was no answer at all. */
export class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
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
    const body = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Refusal(reply.status, typeof body.detail === "string" ? body.detail : "The server refused this (" + reply.status + ").");
    return body;
  }
}
