// What every page has a script for: the theme, keys, rows, copying, and going anywhere. Nothing here writes HTML
// from data: texts are set as text. live.js, charts.js and search.js have the rest.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const by = (id) => document.getElementById(id);
  const rootPath = document.body.dataset.root.replace(/\/$/, "");
  const kept = {
    get: (name) => { try { return localStorage.getItem("winch-" + name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem("winch-" + name, value); } catch { /* private mode */ } },
  };
  window.winch = { by, kept, rootPath };

  // -- theme and time zone ---------------------------------------------------------------------
  const cookie = (name, value) => {
    document.cookie = name + "=" + encodeURIComponent(value) + ";path=" + (rootPath || "/") + ";max-age=31536000;samesite=strict";
  };
  window.winch.cookie = cookie;
  const themes = [...document.querySelectorAll("[data-theme-name]")];
  const setTheme = (name) => {
    root.dataset.theme = name;
    cookie("winch-theme", name);
    for (const link of themes) {
      if (link.dataset.themeName === name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    document.dispatchEvent(new Event("winch-theme"));
  };
  const nextTheme = () => {
    const names = themes.map((link) => link.dataset.themeName);
    setTheme(names[(names.indexOf(root.dataset.theme) + 1) % names.length]);
  };
  for (const link of themes) {
    link.addEventListener("click", (event) => { event.preventDefault(); setTheme(link.dataset.themeName); });
  }
  const zoneLink = by("zone-browser");
  if (zoneLink) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (!zone || zone === document.body.dataset.zone || zone === "UTC") zoneLink.hidden = true;
    else {
      zoneLink.textContent = zone;
      zoneLink.href = rootPath + "/preferences?zone=" + encodeURIComponent(zone) + "&next=" + encodeURIComponent(zoneLink.dataset.next);
    }
  }

  // -- menus close when something else is pointed at ----------------------------------------------
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open], details.phone-menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open], details.phone-menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });

  // -- copying -----------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    event.preventDefault();
    // A link is made whole here: a live update brings the address without its host again.
    const text = button.dataset.copy;
    navigator.clipboard?.writeText(button.dataset.copyLink === undefined ? text : new URL(text, location.href).href).then(() => {
      const was = button.getAttribute("aria-label") || "";
      button.classList.add("is-copied");
      button.setAttribute("aria-label", "Copied");
      setTimeout(() => { button.classList.remove("is-copied"); button.setAttribute("aria-label", was); }, 1200);
    });
  });

  // -- what a link opens, and logs that follow ------------------------------------------------------
  const openAt = (id) => {
    const part = id && by(id);
    if (part && part.tagName === "DETAILS") part.open = true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-open]");
    if (!link) return;
    openAt(link.dataset.open);
    setTimeout(() => by(link.dataset.open)?.querySelector("textarea, input:not([type=hidden])")?.focus(), 0);
  });
  openAt(location.hash.slice(1));
  const follow = () => document.querySelectorAll("[data-follow]").forEach((log) => {
    if (log.dataset.held !== "yes") log.scrollTop = log.scrollHeight;
  });
  document.addEventListener("scroll", (event) => {
    const log = event.target;
    if (log.matches?.("[data-follow]")) log.dataset.held = log.scrollTop + log.clientHeight < log.scrollHeight - 8 ? "yes" : "";
  }, true);
  document.addEventListener("winch-patched", follow);
  follow();

  // -- rows --------------------------------------------------------------------------------------
  let here = null;
  const rows = () => [...document.querySelectorAll("table.rows tbody tr[data-href]")];
  const mark = (row) => {
    document.querySelectorAll("tr.is-here").forEach((one) => one.classList.remove("is-here"));
    row?.classList.add("is-here");
    here = row ? row.dataset.href : null;
    row?.scrollIntoView({ block: "nearest" });
  };
  const current = () => rows().find((row) => row.dataset.href === here);
  const step = (by_) => {
    const all = rows();
    const at = all.indexOf(current());
    mark(all[Math.min(Math.max(at < 0 ? 0 : at + by_, 0), all.length - 1)]);
  };
  const boxes = () => [...document.querySelectorAll("td.c-tick input, td.tick input")];
  // "All that match" is the search, not the rows of this page.
  const count = () => {
    const chosen = boxes().filter((box) => box.checked);
    boxes().forEach((box) => box.closest("tr").classList.toggle("is-chosen", box.checked));
    const isAll = by("bulk-all")?.checked === true;
    const shown = by("ticked");
    if (shown) { shown.textContent = String(chosen.length); shown.parentElement.hidden = isAll; }
    by("bulk")?.classList.toggle("is-on", isAll || chosen.length > 0);
  };
  window.winch.count = count;
  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") {
      boxes().forEach((box) => { box.checked = event.target.checked; });
    }
    if (event.target.matches("#tick-all, #bulk-all, td.c-tick input, td.tick input")) count();
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
    if (event.target.id === "keys-off") kept.set("keys", event.target.checked ? "off" : "on");
    if (event.target.matches("input[data-kept]")) kept.set(event.target.dataset.kept, event.target.checked ? "on" : "off");
  });
  let lastTick = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (box.id === "all-rows") {
      by("bulk-all").checked = true;
      count();
      by("bulk").querySelector("button[name=action]").focus();
    }
    if (box.id === "bulk-clear") {
      event.preventDefault();
      by("bulk-all").checked = false;
      boxes().forEach((one) => { one.checked = false; });
      if (by("tick-all")) by("tick-all").checked = false;
      count();
    }
    if (!box.matches?.("td.c-tick input, td.tick input")) return;
    const all = boxes();
    if (event.shiftKey && lastTick) {
      const [from, to] = [all.indexOf(lastTick), all.indexOf(box)].sort((a, b) => a - b);
      all.slice(from, to + 1).forEach((one) => { one.checked = box.checked; });
      count();
    }
    lastTick = box;
  });

  // -- from one job of a list to the next ----------------------------------------------------------
  const listed = (set) => {
    try {
      if (set) sessionStorage.setItem("winch-list", JSON.stringify(set));
      return JSON.parse(sessionStorage.getItem("winch-list") || "[]");
    } catch { return []; }
  };
  const neighbour = (by_) => {
    const all = listed();
    const at = all.indexOf(location.pathname);
    if (at >= 0 && all[at + by_]) location.href = all[at + by_];
  };
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-href]");
    if (row && event.target.closest("a")) listed([...row.closest("tbody").querySelectorAll("tr[data-href]")].map((one) => one.dataset.href));
  });

  // -- going anywhere ----------------------------------------------------------------------------
  const palette = by("palette");
  let goals = [];
  let chosen = 0;
  let asked = 0;
  const uuid = /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i;
  const drawGoals = () => {
    chosen = Math.min(chosen, Math.max(goals.length - 1, 0));
    by("palette-list").replaceChildren(...goals.map((goal, n) => {
      const row = document.createElement("div");
      row.id = "goal-" + n;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(n === chosen));
      const name = document.createElement("span");
      name.textContent = goal.name;
      row.append(name);
      if (goal.kind) {
        const kind = document.createElement("span");
        kind.className = "n";
        kind.textContent = goal.kind;
        row.append(kind);
      }
      row.addEventListener("click", () => { location.href = goal.href; });
      return row;
    }));
    by("palette-q").setAttribute("aria-activedescendant", goals.length ? "goal-" + chosen : "");
  };
  const showGoals = () => {
    const typed = by("palette-q").value.trim();
    const words = typed.toLowerCase().split(/\s+/);
    const pages = [...palette.querySelectorAll("a.goal")]
      .filter((goal) => words.every((word) => goal.textContent.toLowerCase().includes(word)))
      .map((goal) => ({ name: goal.textContent, href: goal.href, kind: "" }));
    const last = [];
    if (uuid.test(typed)) pages.unshift({ name: "Job " + typed, href: rootPath + "/jobs/" + typed, kind: "job" });
    else if (typed) last.push({ name: "Search jobs for " + typed, href: rootPath + "/jobs?q=" + encodeURIComponent(typed), kind: "" });
    goals = [...pages.slice(0, 6), ...last];
    drawGoals();
    if (!typed) return;
    const turn = ++asked;
    fetch(rootPath + "/goals?q=" + encodeURIComponent(typed), { headers: { accept: "application/json" } })
      .then((answer) => (answer.ok ? answer.json() : { goals: [] }))
      .then((found) => {
        if (turn !== asked) return;
        goals = [...pages.slice(0, 4), ...found.goals.map((one) => ({ name: one.name, kind: one.kind, href: rootPath + one.path })), ...last];
        drawGoals();
      })
      .catch(() => { /* the pages are enough */ });
  };
  const openPalette = () => {
    by("palette-q").value = "";
    chosen = 0;
    showGoals();
    palette.showModal();
    by("palette-q").focus();
  };
  by("palette-q")?.addEventListener("input", () => { chosen = 0; showGoals(); });
  by("palette-q")?.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : goals.length - 1)) % Math.max(goals.length, 1);
      drawGoals();
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (goals[chosen]) location.href = goals[chosen].href;
    }
  });
  by("palette-toggle")?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openPalette();
  });

  // -- keys --------------------------------------------------------------------------------------
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
      event.preventDefault();
      openPalette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || kept.get("keys") === "off") return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      document.querySelector('.side nav a[data-key="' + CSS.escape(event.key) + '"]')?.click();
      return;
    }
    switch (event.key) {
      case "g": isGoing = true; setTimeout(() => { isGoing = false; }, 1200); break;
      case "/": event.preventDefault(); (by("filter-q") ? by("filter-q").focus() : openPalette()); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case "]": neighbour(1); break;
      case "[": neighbour(-1); break;
      case "x": current()?.querySelector("td.c-tick input, td.tick input")?.click(); break;
      case "Enter": if (here && event.target === document.body) current()?.querySelector("a.row-link")?.click(); break;
      case "Escape": by("bulk-clear")?.click(); break;
      case "r": document.dispatchEvent(new Event("winch-live-toggle")); break;
      case "t": nextTheme(); break;
      case "?": by("help").showModal(); break;
      case "R": case "C": case "e": document.querySelector('[data-press="' + event.key + '"]')?.click(); break;
    }
  });
  by("help-toggle")?.addEventListener("click", () => by("help").showModal());
  document.querySelectorAll("input[data-kept]").forEach((box) => { box.checked = kept.get(box.dataset.kept) !== "off"; });
  if (by("keys-off")) by("keys-off").checked = kept.get("keys") === "off";
  if (by("bulk")) count();
})();
