// In <head>, before the first paint: apply the stored theme, so that no page flashes in the other one.
(() => {
  const root = document.documentElement;
  root.dataset.script = "on";
  try {
    const stored = localStorage.getItem("theme");
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch {
    // No storage: the system's theme.
  }
})();
