// The search box of the list of jobs: words as chips, and suggestions while typing.
(() => {
  "use strict";
  const { by, count } = window.winch;
  const form = by("search-form");
  const box = by("filter-q");

  if (!form || !box) return;

  // With a script the words with a field are chips beside the box, and the box holds the rest.
  const quote = (word) => (/[\s'"\\]/.test(word) ? "'" + word.replaceAll("'", "'\"'\"'") + "'" : word);
  let chips = JSON.parse(box.dataset.tokens);
  const rest = () => box.value.trim();
  {
    let value = box.value;
    for (const chip of chips) {
      const at = value.indexOf(quote(chip)) >= 0 ? quote(chip) : chip;
      value = value.replace(at, "");
    }
    box.value = value.replace(/\s+/g, " ").trim();
    if (chips.length) box.placeholder = "";
  }
  const whole = () => [...chips.map(quote), rest()].filter(Boolean).join(" ");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const address = new URL(form.action);
    const q = whole();
    if (q) address.searchParams.set("q", q);
    location.href = address;
  });

  // -- suggestions -------------------------------------------------------------------------------
  const list = document.createElement("div");
  list.className = "suggest";
  list.id = "suggest";
  list.hidden = true;
  const options = document.createElement("div");
  options.className = "options";
  options.id = "suggest-list";
  options.setAttribute("role", "listbox");
  options.setAttribute("aria-label", "Suggestions");
  const keys = document.createElement("p");
  keys.className = "keys-line";
  for (const [key, text] of [["↑↓", "choose"], ["Tab", "complete"], ["Enter", "search"], ["-", "excludes"]]) {
    const one = document.createElement("span");
    const shown = document.createElement("kbd");
    shown.textContent = key;
    one.append(shown, " " + text);
    keys.append(one);
  }
  list.append(options, keys);
  form.append(list);
  box.setAttribute("role", "combobox");
  box.setAttribute("aria-controls", "suggest-list");
  box.setAttribute("aria-expanded", "false");
  box.setAttribute("aria-autocomplete", "list");
  let items = [];
  let chosen = -1;
  let asked = 0;
  let timer = 0;
  const hide = () => { list.hidden = true; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); chosen = -1; };
  const word = () => box.value.slice(0, box.selectionStart).split(/\s+/).at(-1);
  const marked = (text, typed) => {
    const shown = document.createElement("span");
    const at = typed ? text.toLowerCase().indexOf(typed.toLowerCase()) : -1;
    if (at < 0) { shown.textContent = text; return shown; }
    const hit = document.createElement("mark");
    hit.textContent = text.slice(at, at + typed.length);
    shown.append(text.slice(0, at), hit, text.slice(at + typed.length));
    return shown;
  };
  const choose = (n) => {
    chosen = n;
    items.forEach((item, at) => item.row.setAttribute("aria-selected", String(at === n)));
    if (n >= 0) { box.setAttribute("aria-activedescendant", "suggest-" + n); items[n].row.scrollIntoView({ block: "nearest" }); }
  };
  const take = (item) => {
    const before = box.value.slice(0, box.selectionStart);
    const after = box.value.slice(box.selectionStart);
    const start = before.slice(0, before.length - word().length);
    box.value = start + item.insert + after.trimStart();
    box.selectionStart = box.selectionEnd = (start + item.insert).length;
    if (item.insert.endsWith(" ") && item.insert.includes(":")) { form.requestSubmit(); return; }
    ask();
  };
  const draw = (groups, typed) => {
    items = [];
    const rows = [];
    for (const group of groups) {
      const title = document.createElement("div");
      title.className = "group";
      title.setAttribute("role", "presentation");
      title.textContent = group.title;
      rows.push(title);
      for (const one of group.items) {
        const row = document.createElement("div");
        row.id = "suggest-" + items.length;
        row.setAttribute("role", "option");
        row.setAttribute("aria-selected", "false");
        row.append(marked(one.text, typed.split(":").at(-1)));
        for (const [name, text] of [["hint", one.hint], ["n", one.count]]) {
          if (!text) continue;
          const part = document.createElement("span");
          part.className = name;
          part.textContent = text;
          row.append(part);
        }
        const item = { ...one, row };
        row.addEventListener("mousedown", (event) => { event.preventDefault(); take(item); });
        items.push(item);
        rows.push(row);
      }
    }
    options.replaceChildren(...rows);
    list.hidden = items.length === 0 || document.activeElement !== box;
    box.setAttribute("aria-expanded", String(!list.hidden));
    choose(-1);
  };
  const ask = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const typed = word();
      const turn = ++asked;
      fetch(form.dataset.suggest + "?q=" + encodeURIComponent(typed), { headers: { accept: "application/json" } })
        .then((answer) => (answer.ok ? answer.json() : { groups: [] }))
        .then((found) => { if (turn === asked) draw(found.groups, typed); })
        .catch(hide);
    }, 80);
  };
  // Until the answer comes, what no longer fits is gone: Enter must not take it.
  const narrow = () => {
    const typed = word().replace(/^-/, "").split(":").at(-1).toLowerCase();
    items = items.filter((item) => item.text.toLowerCase().includes(typed) || item.row.remove());
    items.forEach((item, n) => { item.row.id = "suggest-" + n; });
    if (items.length) choose(-1); else hide();
  };
  box.addEventListener("input", () => { narrow(); ask(); });
  box.addEventListener("focus", ask);
  box.addEventListener("blur", () => setTimeout(hide, 120));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && !box.value && chips.length) {
      chips.pop();
      form.querySelectorAll(".js-token")[chips.length]?.remove();
      return;
    }
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose((chosen + (event.key === "ArrowDown" ? 1 : chosen < 0 ? items.length : items.length - 1)) % items.length);
    } else if (event.key === "Tab" && !event.shiftKey && items.length) {
      event.preventDefault();
      take(items[Math.max(chosen, 0)]);
    } else if (event.key === "Enter" && chosen >= 0) {
      event.preventDefault();
      take(items[chosen]);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      hide();
    }
  });
})();
