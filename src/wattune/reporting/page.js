// Draws the figures in the colours of the page's style sheet, and again when the reader's theme changes.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displayModeBar: false, showSendToCloud: false };
  const variable = /var\((--[a-z0-9-]+)\)/g;

  function painted(value, style) {
    if (typeof value === "string") return value.replace(variable, (_, name) => style.getPropertyValue(name).trim());
    if (Array.isArray(value)) return value.map((entry) => painted(entry, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, painted(entry, style)]));
    }
    return value;
  }

  async function draw() {
    const style = getComputedStyle(document.documentElement);
    const places = [...document.querySelectorAll("[data-figure]")];
    await Promise.all(
      places.map((place) => {
        const figure = painted(figures[place.dataset.figure], style);
        return Plotly.react(place, figure.data, figure.layout, config);
      }),
    );
    document.documentElement.dataset.drawn = String(places.length);
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
