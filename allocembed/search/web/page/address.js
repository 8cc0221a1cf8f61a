// What the address holds: the search, and the video that is open with its time. So both can be bookmarked, and the
// browser's Back closes the video. An entry of the history also has the key of its search: with the same key, the
// results are those on the page already, also if they were found by a picture, which no address holds.

const ID = /^[0-9a-f]{32}$/;
let key = history.state?.key ?? Date.now();
history.replaceState({ ...history.state, key }, "");

const write = query => query.size ? "?" + query : location.pathname;
const id = name => { const value = new URLSearchParams(location.search).get(name) ?? ""; return ID.test(value) ? value : ""; };

/** The address without the open video. */
function withoutVideo() {
  const query = new URLSearchParams(location.search);
  query.delete("v"); query.delete("t");
  return write(query);
}

/** Take the token out of the address: the cookie has it now. */
export function dropToken() {
  const query = new URLSearchParams(location.search);
  if (!query.has("token")) return;
  query.delete("token");
  history.replaceState(history.state, "", write(query));
}

/** The video whose likes are looked for; empty if there is none. */
export const like = () => id("like");

/** The video that the address says is open, and the second, or null. */
export function opened() {
  const video = id("v"), at = parseFloat(new URLSearchParams(location.search).get("t"));
  return video ? { video, at: at >= 0 && at < 1e6 ? at : null } : null;
}

/** Go on to a search. The same search again makes no further entry. */
export function search(query) {
  if (write(query) !== withoutVideo()) {
    key = Date.now();
    history.pushState({ key }, "", write(query));
  } else if (opened()) {
    const { back } = history.state ?? {};
    history.replaceState({ key }, "", withoutVideo());
    if (back) history.back();
  }
}

/** Name the open video. Only the first one makes an entry, so that Back always leads to the results. */
export function open(video, at) {
  const query = new URLSearchParams(location.search), first = !query.has("v");
  query.set("v", video); query.set("t", String(Math.round(100 * at) / 100));
  if (first) history.pushState({ key, back: true }, "", write(query));
  else history.replaceState(history.state, "", write(query));
}

/** Name no open video any more, as Back does. */
export function close() {
  if (!opened()) return;
  if (history.state?.back) history.back();
  else history.replaceState({ key }, "", withoutVideo());
}

/** After a step in the history: whether it led to another search. */
export function isOtherSearch() {
  const before = key;
  key = history.state?.key ?? Date.now();
  if (!history.state?.key) history.replaceState({ key }, "");
  return key !== before;
}
