// Saving a moment. The answer is looked at first: what the server refuses is said here, and not saved as a file.
import { $, Refusal, refusal } from "./tools.js";

const LARGE = 128 * 2 ** 20;  // bytes that are not held in memory: the browser asks for such a clip once more and saves it

/** Offer a moment as a clip, or the whole file where nothing can be cut. */
export function offer(address, label) {
  const link = $("clip");
  if (link.getAttribute("href") !== address) { link.removeAttribute("aria-busy"); $("refused").textContent = ""; }
  link.setAttribute("href", address);
  if (!link.hasAttribute("aria-busy")) link.textContent = label;
}

function hand(address, name) {
  const link = document.createElement("a");
  link.href = address; link.download = name;
  link.click();
}

function nameOf(reply) {
  const [, name] = /filename\*=utf-8''([^;]+)/i.exec(reply.headers.get("Content-Disposition") ?? "") ?? [];
  const [, plain] = /filename="([^"]+)"/i.exec(reply.headers.get("Content-Disposition") ?? "") ?? [];
  return name ? decodeURIComponent(name) : plain ?? "clip";
}

async function save(address) {
  const stop = new AbortController();
  const reply = await fetch(address, { signal: stop.signal }).catch(() => { throw new Refusal(0, "the server does not answer"); });
  if (!reply.ok) throw await refusal(reply);
  if (Number(reply.headers.get("Content-Length")) > LARGE) { stop.abort(); return hand(address, ""); }
  const made = URL.createObjectURL(await reply.blob());
  hand(made, nameOf(reply));
  setTimeout(() => URL.revokeObjectURL(made), 60_000);
}

$("clip").addEventListener("click", async event => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;  // in another tab, as the visitor wants
  event.preventDefault();
  const link = $("clip"), address = link.getAttribute("href"), label = link.textContent;
  if (link.hasAttribute("aria-busy")) return;
  $("refused").textContent = "";
  link.setAttribute("aria-busy", "true"); link.textContent = "Preparing …";
  const said = await save(address).then(() => "", error => "Cannot download it: " + error.message + ".");
  if (link.getAttribute("href") !== address) return;
  link.removeAttribute("aria-busy"); link.textContent = label;
  $("refused").textContent = said;
});
