// A picture to search by: chosen, pasted or dropped. It is shrunk here, so that a photo does not have to travel whole.
import { $ } from "./tools.js";

const KINDS = ["image/jpeg", "image/png", "image/webp"], SIDE = 1600, PLAIN = 2_000_000;
let picked = null, address = "";

export const picture = () => picked;

export function unpick() {
  picked = null;
  if (address) URL.revokeObjectURL(address);
  address = "";
  $("picture").hidden = true;
  $("preview").removeAttribute("src");
  $("file").value = "";
}

/** Take a file as the picture to search by; false if it is none. */
export async function pick(file) {
  const made = await shrink(file).catch(() => null);
  if (!made) return false;
  unpick();
  picked = made; address = URL.createObjectURL(made);
  $("preview").src = address;
  $("picture").hidden = false;
  return true;
}

async function shrink(file) {
  const bitmap = await createImageBitmap(file);
  const factor = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  if (factor === 1 && file.size <= PLAIN && KINDS.includes(file.type)) return file;
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * factor)); canvas.height = Math.max(1, Math.round(bitmap.height * factor));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((done, stop) => canvas.toBlob(blob => blob ? done(blob) : stop(), "image/jpeg", 0.92));
}

/** Call `take` with each file that is chosen, pasted or dropped anywhere on the page. */
export function listen(take) {
  $("choose").onclick = () => $("file").click();
  $("file").onchange = () => { if ($("file").files[0]) take($("file").files[0]); };
  addEventListener("paste", event => {
    const file = [...(event.clipboardData?.files ?? [])].find(each => each.type.startsWith("image/"));
    if (file) { event.preventDefault(); take(file); }  // text goes where the cursor is
  });
  let depth = 0;  // dragenter and dragleave come for every element on the way
  const files = event => event.dataTransfer?.types.includes("Files");
  const end = () => { depth = 0; $("drop").hidden = true; };
  addEventListener("dragenter", event => { if (files(event)) { event.preventDefault(); depth++; $("drop").hidden = false; } });
  addEventListener("dragover", event => { if (files(event)) event.preventDefault(); });
  addEventListener("dragleave", event => { if (files(event) && --depth <= 0) end(); });
  addEventListener("drop", event => {
    if (!files(event)) return;
    event.preventDefault(); end();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
}
