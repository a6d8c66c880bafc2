// Charts by uPlot, from the figures that the page carries: one cross-hair on all of them, a tooltip on the one under
// the pointer, and a brush that sets ?from=&to=. Without this the server's SVG and the table are there.
(() => {
  "use strict";
  if (!window.uPlot) return;
  const charts = new Map(); // figure -> { plot, text, data }
  const sync = window.uPlot.sync("winch");
  const zone = document.body.dataset.zone || "UTC";

  // A colour as the browser resolves it: a canvas knows no custom properties.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const ink = (name, share = 1) => {
    probe.style.color = "var(" + name + ")";
    const found = getComputedStyle(probe).color;
    if (share === 1) return found;
    const parts = found.match(/[\d.]+/g).slice(0, 3);
    return found.startsWith("rgb") ? "rgba(" + parts.join(",") + "," + share + ")" : found;
  };
  const toneOf = (tone) => {
    probe.className = tone;
    const name = ink("--tone");
    probe.className = "";
    return name;
  };
  const pale = (color, share) => color.startsWith("rgb") ? color.replace(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+).*$/, "rgba($1,$2,$3," + share + ")") : color;

  const number = (v) => (v >= 10 || v === Math.round(v) ? Math.round(v).toLocaleString("en") : String(+v.toFixed(2)));
  // As `span` in pages/show.py has it: the tooltip, the legend and the table say the same.
  const length = (s) => {
    if (s === 0) return "0 s";
    if (s < 0.001) return Math.round(s * 1e6) + " µs";
    if (s < 1) return Math.round(s * 1000) + " ms";
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
    const pair = (large, name, small, other) => large + " " + name + (small && large < 10 ? " " + small + " " + other : "");
    const whole = Math.floor(s);
    const hours = Math.floor(whole / 3600);
    if (hours < 1) return pair(Math.floor(whole / 60), "m", whole % 60, "s");
    if (hours < 48) return pair(hours, "h", Math.floor(whole / 60) % 60, "m");
    return pair(Math.floor(hours / 24), "d", hours % 24, "h");
  };
  const said = (v, unit) => (v === null || v === undefined ? "–" : unit === "s" ? length(v) : number(v));
  const tickText = (v, unit) => {
    const short = (x) => String(+x.toPrecision(3));
    if (unit === "s") {
      if (v === 0) return "0";
      if (v < 1) return short(v * 1000) + " ms";
      if (v < 60) return short(v) + " s";
      if (v < 3600) return short(v / 60) + " m";
      return v < 172800 ? short(v / 3600) + " h" : short(v / 86400) + " d";
    }
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (v >= size) return short(v / size) + letter;
    return short(v);
  };
  const STEPS = [1, 2, 2.5, 5, 10];
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const ticks = (top, unit) => {
    if (top <= 0) return [0, 1];
    let step;
    if (unit === "s" && top > 1) step = TIMES.find((one) => one * 5 >= top) || 604800;
    else {
      const power = 10 ** Math.floor(Math.log10(top / 5));
      let sizes = STEPS.map((one) => +(one * power).toPrecision(9));
      if (!unit && top >= 1) sizes = sizes.filter(Number.isInteger);
      step = sizes.find((one) => one * 5 >= top * 0.999) || 1;
    }
    const count = Math.max(Math.ceil(top / step - 0.001), 1);
    return [...Array(count + 1).keys()].map((n) => +(n * step).toPrecision(9));
  };
  const clock = (at, options) => new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...options }).format(new Date(at * 1000));

  // Bars stand on each other: the upper one is drawn first, as the sum, and the lower one over it.
  const columns = (data) => {
    const solid = data.rows.filter((row) => row.look === "bars");
    const series = [];
    for (const row of data.rows) {
      let values = row.values;
      if (row.look === "bars") {
        const at = solid.indexOf(row);
        values = row.values.map((_, n) => solid.slice(0, at + 1).reduce((sum, one) => sum + (one.values[n] || 0), 0));
      }
      series.push({ row, values });
    }
    const order = [...series.filter((one) => one.row.look !== "bars"), ...series.filter((one) => one.row.look === "bars").reverse()];
    return { order, table: [data.times, ...order.map((one) => one.values)] };
  };
  const topOf = (table, aim) => Math.max(aim || 0, ...table.slice(1).flat().filter((v) => v !== null));

  const tip = (plot, data) => {
    const box = document.createElement("div");
    box.className = "tip";
    box.hidden = true;
    plot.over.append(box);
    return {
      box,
      show(at, left) {
        if (at === null || at === undefined || data().times[at] === undefined) { box.hidden = true; return; }
        const found = data();
        const head = document.createElement("b");
        head.textContent = found.labels[at];
        const lines = found.rows.map((row) => {
          const line = document.createElement("div");
          const swatch = document.createElement("span");
          swatch.className = "swatch " + row.tone;
          const name = document.createElement("span");
          name.textContent = row.name;
          const value = document.createElement("em");
          value.textContent = said(row.values[at], found.unit);
          line.append(swatch, name, value);
          return line;
        });
        box.replaceChildren(head, ...lines);
        box.hidden = false;
        const wide = plot.over.clientWidth;
        const own = box.offsetWidth;
        box.style.left = (left + 14 + own > wide ? Math.max(left - own - 14, 0) : left + 14) + "px";
      },
    };
  };

  const zoom = (start, end) => {
    const address = new URL(location.href);
    address.searchParams.delete("range");
    address.searchParams.set("from", String(Math.floor(start)));
    address.searchParams.set("to", String(Math.ceil(end)));
    location.href = address;
  };

  const make = (figure) => {
    const text = figure.dataset.chart;
    const data = JSON.parse(text);
    const place = figure.querySelector(".plot");
    if (!data.times.length || !data.rows.length || place.querySelector(".plot-empty")) return;
    const box = document.createElement("div");
    box.className = "drawn";
    box.setAttribute("aria-hidden", "true"); // the table has the same figures
    place.append(box);
    place.classList.add("is-live");
    const one = { data, text };
    const { order, table } = columns(data);
    const step = data.times.length > 1 ? data.times[1] - data.times[0] : 60;
    const font = "11px " + getComputedStyle(document.body).fontFamily;
    const series = order.map(({ row }) => {
      const color = () => toneOf(row.tone);
      if (row.look === "bars") return { label: row.name, stroke: color, fill: color, width: 0, points: { show: false }, paths: window.uPlot.paths.bars({ size: [0.8, 24, 1], align: 0 }) };
      return {
        label: row.name, stroke: color, width: 1.75, spanGaps: false,
        fill: row.look === "area" ? () => pale(color(), 0.15) : undefined,
        points: { show: (_, n) => row.values.filter((v) => v !== null).length < 3, size: 5, fill: color },
      };
    });
    const high = () => ticks(topOf(columns(one.data).table, one.data.aim), data.unit).at(-1);
    const options = {
      width: Math.max(box.clientWidth, 100), height: 168, legend: { show: false }, padding: [8, 20, 0, 0],
      tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), zone),
      cursor: {
        sync: { key: "winch", setSeries: false, scales: ["x", null] }, y: false, points: { size: 6 },
        drag: { x: true, y: false, setScale: false, dist: 6 },
      },
      scales: { x: { time: true, range: (_, low, top) => [low - step / 2, top + step / 2] }, y: { range: () => [0, high()] } },
      axes: [
        {
          stroke: () => ink("--faint"), font, grid: { show: false }, ticks: { show: false }, size: 22, gap: 4, space: 64,
          values: (_, found) => found.map((at) => (step >= 43200 || found.length > 1 && found[1] - found[0] >= 86400
            ? clock(at, { day: "numeric", month: "short" }) : clock(at, { hour: "2-digit", minute: "2-digit" }))),
        },
        {
          stroke: () => ink("--faint"), font, size: 52, gap: 6, ticks: { show: false }, grid: { stroke: () => ink("--grid"), width: 1 },
          splits: () => ticks(topOf(columns(one.data).table, one.data.aim), data.unit),
          values: (_, found) => found.map((v) => tickText(v, data.unit)),
        },
      ],
      series: [{}, ...series],
      hooks: {
        drawSeries: [],
        draw: [(plot) => {
          if (one.data.aim === null) return;
          const y = Math.round(plot.valToPos(one.data.aim, "y", true));
          const { left, width } = plot.bbox;
          plot.ctx.save();
          plot.ctx.strokeStyle = toneOf("tone-dead");
          plot.ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
          plot.ctx.lineWidth = 1.25 * devicePixelRatio;
          plot.ctx.beginPath();
          plot.ctx.moveTo(left, y);
          plot.ctx.lineTo(left + width, y);
          plot.ctx.stroke();
          plot.ctx.restore();
        }],
        setCursor: [(plot) => {
          if (!one.tip) return;
          const own = plot.over.matches(":hover");
          if (own) one.tip.show(plot.cursor.idx, plot.cursor.left);
          else one.tip.box.hidden = true;
        }],
        setSelect: [(plot) => {
          if (plot.select.width < 6) return;
          const start = plot.posToVal(plot.select.left, "x");
          const end = plot.posToVal(plot.select.left + plot.select.width, "x");
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (figure.closest("[data-zoom]")) zoom(start, end);
        }],
      },
    };
    one.plot = new window.uPlot(options, table, box);
    one.tip = tip(one.plot, () => one.data);
    sync.sub(one.plot);
    charts.set(figure, one);
  };

  const refresh = () => {
    for (const [figure, one] of charts) {
      if (!figure.isConnected) { one.plot.destroy(); charts.delete(figure); }
    }
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const one = charts.get(figure);
      if (!one) { make(figure); continue; }
      if (one.text === figure.dataset.chart) continue;
      const data = JSON.parse(figure.dataset.chart);
      if (data.rows.map((row) => row.name).join() !== one.data.rows.map((row) => row.name).join()) {
        one.plot.destroy();
        figure.querySelector(".drawn")?.remove();
        charts.delete(figure);
        make(figure);
        continue;
      }
      one.text = figure.dataset.chart;
      one.data = data;
      one.plot.setData(columns(data).table);
    }
  };
  const resize = new ResizeObserver(() => {
    for (const [figure, one] of charts) {
      const width = figure.querySelector(".drawn")?.clientWidth;
      if (width && width !== one.plot.width) one.plot.setSize({ width, height: 168 });
    }
  });
  refresh();
  for (const figure of document.querySelectorAll("figure[data-chart]")) resize.observe(figure);
  document.addEventListener("winch-patched", refresh);
  const redraw = () => { for (const one of charts.values()) one.plot.redraw(); };
  document.addEventListener("winch-theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
