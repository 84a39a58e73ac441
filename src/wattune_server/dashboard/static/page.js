// Refreshes a page: fetches it every two seconds, or the address in data-from that renders less, and applies the changes
// inside #live. The server does all rendering, so without this script a page shows the same content, but does not update.
(() => {
  const EVERY_MS = 2000;
  const AT_MOST_MS = 15000;
  const READINGS = 150;
  const live = document.getElementById("live");
  if (!live) return;
  const note = document.getElementById("connection-lost");
  const spoken = document.getElementById("spoken");
  let wait = EVERY_MS;
  let timer = 0;
  let fetching = false;
  let since = new Date();

  // Makes `old` like `fresh`, node by node, so that focus and selection are preserved.
  function morph(old, fresh) {
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let next = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const own = wanted.id ? byId.get(wanted.id) : next && !next.id && next.nodeName === wanted.nodeName ? next : null;
      if (!own) {
        old.insertBefore(document.importNode(wanted, true), next);
        continue;
      }
      if (own === next) next = next.nextSibling;
      else old.insertBefore(own, next);
      if (own.nodeType === Node.ELEMENT_NODE) morph(own, wanted);
      else if (own.data !== wanted.data) own.data = wanted.data;
    }
    while (next) {
      const obsolete = next;
      next = next.nextSibling;
      obsolete.remove();
    }
  }

  const announcements = (place) => new Map([...place.querySelectorAll("[data-announce]")].map((e) => [e.id, e.dataset.announce]));

  // Power over the last minutes while this page was open: the server stores only the newest reading.
  const readings = new Map();
  function trace() {
    for (const spark of document.querySelectorAll("[data-power]")) {
      const run = `${spark.id} ${spark.dataset.run}`;
      const list = readings.get(run) ?? [];
      list.push(Number(spark.dataset.power));
      if (list.length > READINGS) list.shift();
      readings.set(run, list);
      const cap = Number(spark.dataset.cap) || 0;
      const top = Math.max(cap, ...list) * 1.1 || 1;
      const y = (watts) => (36 - (32 * watts) / top).toFixed(1);
      const x = (index) => (100 - (100 * (list.length - 1 - index)) / (READINGS - 1)).toFixed(2);
      spark.querySelector("polyline").setAttribute("points", list.map((w, i) => `${x(i)},${y(w)}`).join(" "));
      const limit = spark.querySelector("line");
      if (limit) limit.setAttribute("y1", y(cap));
      if (limit) limit.setAttribute("y2", y(cap));
      spark.toggleAttribute("hidden", list.length < 2);
    }
  }

  function setNote(text) {
    note.textContent = text;
    note.hidden = !text;
  }

  // One request at a time, and one timer: hiding and showing a page does not increase the request rate.
  async function renew() {
    clearTimeout(timer);
    if (fetching || document.hidden) return;
    fetching = true;
    try {
      // Accept HTML, so that an expired session is redirected to /login.
      const answer = await fetch(live.dataset.from ?? location.href, {
        cache: "no-store",
        headers: { Accept: "text/html" },
        signal: AbortSignal.timeout(10000),
      });
      if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) {
        setNote("Your session has expired.");
        location.assign(answer.url);
        return;
      }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (!fresh) throw new Error("unexpected page");
      const before = announcements(live);
      // Keep what this script has drawn.
      for (const spark of fresh.querySelectorAll("[data-power]")) {
        const own = document.getElementById(spark.id);
        if (own) spark.innerHTML = own.innerHTML;
      }
      morph(live, fresh);
      trace();
      const news = [...announcements(live)].filter(([id, text]) => before.get(id) !== text).map(([, text]) => text);
      if (news.length) spoken.textContent = news.slice(0, 3).join(". ");
      since = new Date();
      wait = EVERY_MS;
      setNote("");
    } catch (error) {
      const why = error instanceof TypeError || error.name === "TimeoutError" ? "" : ` (${error.message})`;
      setNote(`The server does not respond${why}. This page shows the state at ${since.toLocaleTimeString()}; retrying.`);
      wait = Math.min(AT_MOST_MS, wait * 1.5);
    } finally {
      fetching = false;
    }
    clearTimeout(timer);
    timer = setTimeout(renew, wait);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) {
      wait = EVERY_MS;
      renew();
    }
  });
  trace();
  timer = setTimeout(renew, EVERY_MS);
})();
