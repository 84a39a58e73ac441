// Moves the frontier and the chosen point with the cap slider. The server has computed the choice for every cap; this
// script looks it up.
(() => {
  const data = document.getElementById("steps");
  if (!data) return; // Nothing was measured, so there is no form.
  const { steps, none, rows } = JSON.parse(data.textContent);
  const slider = document.getElementById("cap-slider");
  const number = document.getElementById("cap-number");
  const cells = [...document.querySelectorAll(".heat td")].map((cell) => [cell, cell.dataset.at.split(",").map(Number)]);
  const places = Object.fromEntries([...document.querySelectorAll("[data-chosen]")].map((e) => [e.dataset.chosen, e]));

  let timer = 0;

  function stepAt(cap) {
    let match = null;
    for (const step of steps) if (step.cap_w <= cap) match = step;
    return match;
  }

  function show(cap) {
    const step = stepAt(cap);
    const marked = step ? step.marked : Array(rows).fill(null);
    const edge = (row) => marked[row] ?? -1;
    for (const [cell, [row, column]] of cells) {
      const inside = column <= edge(row);
      const below = row > 0 && inside !== column <= edge(row - 1);
      cell.classList.toggle("edge-right", inside && column === edge(row));
      cell.classList.toggle("edge-left", edge(row) < 0 && column === 0 && "known" in cell.dataset);
      cell.classList.toggle("edge-below", below);
      const chosen = Boolean(step?.chosen) && step.chosen[0] === row && step.chosen[1] === column;
      cell.classList.toggle("chosen", chosen);
      // On a phone, a map is wider than the screen: scroll the chosen point into view.
      if (chosen) cell.closest(".scroll").scrollLeft = cell.offsetLeft - cell.closest(".scroll").clientWidth / 2;
    }
    for (const [key, place] of Object.entries(places)) {
      place.textContent = step ? (step.texts[key] ?? "-") : key === "point" || key === "line" ? none : "-";
    }
    const url = new URL(location.href);
    url.searchParams.set("cap", cap);
    clearTimeout(timer);
    timer = setTimeout(() => history.replaceState(null, "", url), 200);
  }

  slider.hidden = false;
  slider.addEventListener("input", () => {
    number.value = Number(slider.value).toFixed(2);
    show(Number(slider.value));
  });
  number.addEventListener("input", () => {
    const cap = Number(number.value);
    if (!(cap > 0)) return;
    slider.value = cap;
    show(cap);
  });
  document.getElementById("job")?.addEventListener("change", (event) => event.target.form.submit());
  document.getElementById("show").hidden = true;
})();
