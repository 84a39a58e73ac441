// In <head>, before anything is drawn: the theme that the reader chose last, so that no page flashes in the other one.
(() => {
  const root = document.documentElement;
  root.dataset.script = "on";
  try {
    const kept = localStorage.getItem("theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch {
    // No storage: the system's theme.
  }
})();
