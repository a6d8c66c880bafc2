// Live updates: events from the server say that something changed; the page is read again and what differs is
// changed in place. Nothing moves under the pointer: rows that are new to a list wait behind a button.
(() => {
  "use strict";
  const { by, kept, rootPath } = window.winch;
  const area = by("live");
  const from = area?.dataset.liveFrom;
  const toggle = by("live-toggle");
  if (!toggle) return;
  if (!from) { toggle.hidden = true; return; }

  const LEAST = 2000; // between two looks at the server
  let longest = 15000; // without a message: times of the page grow old, too
  let state = kept.get("live") === "off" ? "paused" : "on";
  let source = null;
  let timer = 0;
  let isReading = false;
  let readAt = Date.now();
  let saved = null; // the newest answer, while rows of it wait

  const ago = (ms) => {
    const s = Math.round(ms / 1000);
    return s < 60 ? s + " s old" : s < 3600 ? Math.round(s / 60) + " m old" : Math.round(s / 3600) + " h old";
  };
  const show = () => {
    document.body.dataset.live = state;
    toggle.setAttribute("aria-pressed", String(state !== "paused"));
    by("live-word").textContent = { on: "Live", paused: "Paused", lost: "No answer" }[state];
    const old = Date.now() - readAt;
    const isStale = state !== "on" && old > 5000;
    by("live-age").hidden = !isStale;
    by("live-age").textContent = isStale ? ago(old) : "";
    area.classList.toggle("is-stale", isStale);
    by("offline").hidden = state !== "lost";
  };

  // -- changing in place ---------------------------------------------------------------------------
  const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset?.key || "" : "");
  const isKept = (node) => node.nodeType === 1 && (node.classList.contains("drawn") || node.contains(document.activeElement) && node.matches("input, textarea, select"));
  const copyAttributes = (old, fresh) => {
    for (const { name, value } of [...fresh.attributes]) {
      if (name === "open" || name === "class") continue;
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (name !== "open" && name !== "class" && name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    const own = ["is-here", "is-chosen", "is-stale", "is-live"].filter((one) => old.classList.contains(one));
    const wanted = [(fresh.getAttribute("class") || ""), ...own].join(" ").trim();
    if ((old.getAttribute("class") || "") !== wanted) old.setAttribute("class", wanted);
  };
  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh) || isKept(old)) return;
    copyAttributes(old, fresh);
    if (old.matches("input, textarea, select")) return;
    if (old.matches("tbody[data-rows]")) { patchRows(old, fresh); return; }
    if (old.matches("tbody:hover")) { patchHeld(old, fresh); return; }
    const keyed = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
    let at = old.firstChild;
    const skip = () => { while (at && at.nodeType === 1 && at.classList.contains("drawn")) at = at.nextSibling; };
    for (const next of [...fresh.childNodes]) {
      skip();
      const key = keyOf(next);
      let match = key ? keyed.get(key) : null;
      if (!key && at && !keyOf(at) && at.nodeType === next.nodeType && at.nodeName === next.nodeName) match = at;
      if (!match) { old.insertBefore(document.importNode(next, true), at); continue; }
      if (match !== at) old.insertBefore(match, at);
      if (match.nodeType === 3 || match.nodeType === 8) {
        if (match.data !== next.data) match.data = next.data;
      } else if (match.nodeName === next.nodeName) patch(match, next);
      else { match.replaceWith(document.importNode(next, true)); }
      at = match.isConnected ? match.nextSibling : at;
    }
    while (at) {
      const after = at.nextSibling;
      if (!(at.nodeType === 1 && at.classList.contains("drawn"))) at.remove();
      at = after;
    }
  };
  // Rows of a table that the pointer is on keep their order; new ones come when it has left.
  const patchHeld = (old, fresh) => {
    const there = new Map([...old.children].map((row) => [keyOf(row), row]));
    for (const row of fresh.children) {
      if (keyOf(row) && there.has(keyOf(row))) patch(there.get(keyOf(row)), row);
    }
  };
  // What is above the row under the pointer may have grown or shrunk: the page is shifted by as much, until the
  // pointer is on no row.
  let shift = 0;
  const shiftTo = (pixels) => {
    shift = pixels;
    area.style.position = shift ? "relative" : "";
    area.style.top = shift ? shift + "px" : "";
  };
  const holding = (change) => {
    const row = area.querySelector("tbody tr:hover");
    const top = row?.getBoundingClientRect().top;
    const scrolled = scrollY;
    change();
    if (!row?.isConnected) return;
    const hold = () => {
      if (scrollY !== scrolled) return; // the reader's own doing
      const moved = row.getBoundingClientRect().top - top;
      if (moved) shiftTo(shift - moved);
    };
    hold();
    requestAnimationFrame(hold); // charts are drawn after the page
  };
  document.addEventListener("pointerover", (event) => {
    if (shift && !event.target.closest("tbody tr")) shiftTo(0);
  });
  // The rows that are there stay where they are and change their cells. New ones wait, unless the list was empty.
  const patchRows = (old, fresh) => {
    const there = new Map([...old.children].map((row) => [row.dataset.key, row]));
    const news = [...fresh.children].filter((row) => !there.has(row.dataset.key));
    for (const row of fresh.children) {
      if (there.has(row.dataset.key)) patch(there.get(row.dataset.key), row);
    }
    const gone = [...there.keys()].filter((key) => ![...fresh.children].some((row) => row.dataset.key === key));
    if (old.children.length === 0) { old.append(...news.map((row) => document.importNode(row, true))); return; }
    const button = by("new-rows");
    if (!button) return;
    // Only what is above the first known row is new; the rest fills the places of rows that went.
    const first = [...fresh.children].findIndex((row) => there.has(row.dataset.key));
    const above = first < 0 ? fresh.children.length : first;
    button.hidden = above === 0 && gone.length === 0;
    button.textContent = above ? above + " new, show" : "The list has changed, show";
  };
  const showRows = () => {
    const list = saved?.querySelector("tbody[data-rows]");
    const old = area.querySelector("tbody[data-rows]");
    if (list && old) {
      const ticked = new Set([...old.querySelectorAll("input:checked")].map((box) => box.value));
      old.replaceChildren(...[...list.children].map((row) => document.importNode(row, true)));
      old.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = ticked.has(box.value); });
      window.winch.count();
    }
    by("new-rows").hidden = true;
  };
  document.addEventListener("click", (event) => { if (event.target.id === "new-rows") showRows(); });

  const isBusy = () => String(getSelection()).length > 0 && area.contains(getSelection().anchorNode)
    || area.querySelector("details.menu[open]") !== null || document.querySelector("dialog[open]") !== null;
  const read = async () => {
    timer = 0;
    if (state === "paused" || document.hidden || isReading) return;
    if (isBusy()) { timer = setTimeout(read, LEAST); return; }
    isReading = true;
    try {
      const answer = await fetch(from, { headers: { accept: "text/html", "x-winch-live": "1" } });
      if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("live");
      if (fresh) {
        const button = by("new-rows");
        const was = button && !button.hidden;
        saved = fresh;
        holding(() => {
          patch(area, fresh);
          if (was && button.isConnected && button.textContent) button.hidden = false;
          readAt = Date.now();
          document.dispatchEvent(new Event("winch-patched"));
        });
      }
      for (const nav of document.querySelectorAll("nav.nav")) {
        const other = page.querySelector(nav.classList.contains("sheet") ? "nav.sheet" : ".side nav.nav");
        if (other) patch(nav, other);
      }
      if (state === "lost") state = "on";
    } catch {
      if (state === "on") state = "lost";
      timer = setTimeout(read, LEAST * 2);
    } finally {
      isReading = false;
      show();
    }
  };
  const soon = () => {
    if (timer || state === "paused") return;
    timer = setTimeout(read, Math.max(LEAST - (Date.now() - readAt), 50));
  };
  const connect = () => {
    source?.close();
    source = null;
    if (state === "paused" || document.hidden) return;
    source = new EventSource(rootPath + (area.dataset.events || "/api/v1/events"));
    source.addEventListener("queues", soon);
    source.addEventListener("job", soon);
    source.addEventListener("open", () => { if (state === "lost") soon(); });
    source.addEventListener("error", () => { 
      // Refused: a caller without the right to streams, or a server that has none. Then the page asks.
      if (source?.readyState === EventSource.CLOSED) { source = null; longest = 4000; }
    });
  };
  const setState = (next) => {
    state = next;
    kept.set("live", next === "paused" ? "off" : "on");
    if (next !== "paused") readAt = Math.min(readAt, Date.now());
    connect();
    show();
    if (next !== "paused") soon();
  };
  toggle.addEventListener("click", () => setState(state === "paused" ? "on" : "paused"));
  document.addEventListener("winch-live-toggle", () => setState(state === "paused" ? "on" : "paused"));
  document.addEventListener("visibilitychange", () => { connect(); if (!document.hidden) soon(); });
  // Without a message the page is read now and then: some figures change with time alone.
  setInterval(() => { if (Date.now() - readAt > longest) soon(); show(); }, 1000);
  connect();
  show();
})();
