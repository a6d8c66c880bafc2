// What the pages cannot do without a script: live updates, the theme, keys, and reading a chart.
// Nothing here writes HTML from data: texts are set as text.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const by = (id) => document.getElementById(id);
  const kept = {
    get: (name) => { try { return localStorage.getItem("winch-" + name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem("winch-" + name, value); } catch { /* private mode */ } },
  };

  // -- live ------------------------------------------------------------------------------------
  let live = kept.get("live") !== "off";
  let here = 0;
  const showLive = () => {
    const toggle = by("live-toggle");
    if (!toggle) return;
    toggle.setAttribute("aria-pressed", String(live));
    by("live-word").textContent = live ? "Live" : "Paused";
  };
  const isBusy = () => {
    const area = by("live");
    if (!area) return true;
    const focus = document.activeElement;
    return area.querySelector("input:checked, details.numbers[open], details.error[open] ~ details.error[open]") !== null
      || (focus && area.contains(focus) && focus.matches("input, textarea, select"))
      || String(getSelection()).length > 0;
  };
  setInterval(() => {
    if (live && !document.hidden && !isBusy()) document.body.dispatchEvent(new Event("winch-tick"));
  }, 3000);
  const toggleLive = () => { live = !live; kept.set("live", live ? "on" : "off"); showLive(); };
  const offline = (is) => {
    by("offline").hidden = !is;
    const area = by("live");
    if (area) area.classList.toggle("is-stale", is);
  };
  document.body.addEventListener("htmx:sendError", () => offline(true));
  document.body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status >= 500) offline(true);
  });
  document.body.addEventListener("htmx:afterSwap", () => { offline(false); mark(); });

  // -- theme -----------------------------------------------------------------------------------
  const themes = ["system", "light", "dark"];
  const toggleTheme = () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    root.dataset.theme = next;
    by("theme-word").textContent = next;
    document.cookie = "winch-theme=" + next + ";path=/;max-age=31536000;samesite=strict";
  };

  // -- rows ------------------------------------------------------------------------------------
  const rows = () => [...document.querySelectorAll("table.rows tbody tr[data-href]")];
  const mark = () => rows().forEach((row, n) => row.classList.toggle("is-here", here > 0 && n === here - 1));
  const step = (by_) => {
    here = Math.min(Math.max(here + by_, 1), rows().length);
    mark();
    rows()[here - 1]?.scrollIntoView({ block: "nearest" });
  };
  const count = () => {
    const shown = by("ticked");
    if (shown) shown.textContent = "(" + document.querySelectorAll("td.tick input:checked").length + ")";
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") {
      document.querySelectorAll("td.tick input").forEach((box) => { box.checked = event.target.checked; });
    }
    if (event.target.matches("#tick-all, td.tick input")) count();
    if (event.target.id === "keys-off") kept.set("keys", event.target.checked ? "off" : "on");
  });
  let lastTick = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!box.matches || !box.matches("td.tick input")) return;
    const all = [...document.querySelectorAll("td.tick input")];
    if (event.shiftKey && lastTick) {
      const [from, to] = [all.indexOf(lastTick), all.indexOf(box)].sort((a, b) => a - b);
      all.slice(from, to + 1).forEach((one) => { one.checked = box.checked; });
      count();
    }
    lastTick = box;
  });

  // -- going anywhere --------------------------------------------------------------------------
  const palette = by("palette");
  let goals = [];
  let chosen = 0;
  const uuid = /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i;
  const showGoals = () => {
    const typed = by("palette-q").value.trim();
    const words = typed.toLowerCase().split(/\s+/);
    const rootPath = document.body.dataset.root.replace(/\/$/, "");
    goals = [...palette.querySelectorAll("a.goal")]
      .filter((goal) => words.every((word) => goal.textContent.toLowerCase().includes(word)))
      .map((goal) => ({ name: goal.textContent, href: goal.href }));
    if (uuid.test(typed)) goals.unshift({ name: "Job " + typed, href: rootPath + "/jobs/" + typed });
    else if (typed) goals.push({ name: "Search jobs for " + typed, href: rootPath + "/jobs?q=" + encodeURIComponent(typed) });
    goals = goals.slice(0, 9);
    chosen = Math.min(chosen, Math.max(goals.length - 1, 0));
    by("palette-list").replaceChildren(...goals.map((goal, n) => {
      const row = document.createElement("li");
      row.id = "goal-" + n;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(n === chosen));
      row.textContent = goal.name;
      row.addEventListener("click", () => { location.href = goal.href; });
      return row;
    }));
    by("palette-q").setAttribute("aria-activedescendant", goals.length ? "goal-" + chosen : "");
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
      showGoals();
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (goals[chosen]) location.href = goals[chosen].href;
    }
  });
  by("palette-toggle")?.addEventListener("click", openPalette);

  // -- keys ------------------------------------------------------------------------------------
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
      event.preventDefault();
      openPalette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || kept.get("keys") === "off") return;
    if (event.target.matches("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      document.querySelector('.side nav a[data-key="' + CSS.escape(event.key) + '"]')?.click();
      return;
    }
    switch (event.key) {
      case "g": isGoing = true; setTimeout(() => { isGoing = false; }, 1200); break;
      case "/": event.preventDefault(); by("q")?.focus(); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case "x": rows()[here - 1]?.querySelector("td.tick input")?.click(); break;
      case "Enter": if (here && event.target === document.body) rows()[here - 1]?.querySelector("a.row-link")?.click(); break;
      case "r": toggleLive(); break;
      case "t": toggleTheme(); break;
      case "?": by("help").showModal(); break;
    }
  });

  // -- charts ----------------------------------------------------------------------------------
  const clear = (figure) => {
    figure?.querySelector(".hover-line")?.remove();
    figure?.querySelector(".reading")?.remove();
  };
  // All charts of a page show the same moments: what is read in one is read in all.
  const read = (svg, share) => {
    const figure = svg.closest(".plot");
    const [left, right, moments] = svg.dataset.plot.split(" ").map(Number);
    const at = Math.floor(share * moments);
    clear(figure);
    const row = figure.querySelectorAll(".numbers tbody tr")[at];
    if (!row) return;
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const middle = left + (at + 0.5) * (right - left) / moments;
    for (const [name, value] of [["x1", middle], ["x2", middle], ["y1", 8], ["y2", 158], ["class", "hover-line"]]) {
      line.setAttribute(name, value);
    }
    svg.append(line);
    const names = [...figure.querySelectorAll(".numbers thead th")].slice(1).map((cell) => cell.textContent);
    const reading = document.createElement("div");
    reading.className = "reading";
    reading.textContent = row.querySelector("th").textContent + "  "
      + [...row.querySelectorAll("td")].map((cell, n) => names[n] + " " + cell.textContent).join("  ");
    figure.append(reading);
  };
  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.("svg.chart");
    if (!svg) {
      document.querySelectorAll(".plot").forEach(clear);
      return;
    }
    const [left, right] = svg.dataset.plot.split(" ").map(Number);
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const share = (x - left) / (right - left);
    document.querySelectorAll(".plots svg.chart").forEach((other) => read(other, share));
  });

  by("live-toggle")?.addEventListener("click", toggleLive);
  by("theme-toggle")?.addEventListener("click", toggleTheme);
  by("help-toggle")?.addEventListener("click", () => by("help").showModal());
  if (by("keys-off")) by("keys-off").checked = kept.get("keys") === "off";
  showLive();
})();
