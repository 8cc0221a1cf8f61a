// Runs before the page is drawn, so that a chosen theme does not flash. Without a choice the system decides.
(() => {
  const root = document.documentElement;
  const chosen = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
})();
