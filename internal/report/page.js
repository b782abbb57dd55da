"use strict";
// What the page does beyond being read: single points by pointer and arrow
// keys, sorting, printing with its tables open, and the updates of a live page.
// Text is only ever set as text.
(() => {
  let data = {};

  const readData = () => {
    const el = document.querySelector("#data script");
    data = el ? JSON.parse(el.textContent) : {};
  };
  const percent = (v) => (100 * v).toFixed(2) + "%";
  const grouped = (n) => Number(n).toLocaleString("en-US");
  const steps = (from, per) => {
    const to = Math.min(from + per - 1, data.last);
    return to <= from ? "step " + grouped(from) : "steps " + grouped(from) + "–" + grouped(to);
  };
  const known = (v) => v !== null && v !== undefined;

  // The same digits as in the tables.
  const rate = (v) => {
    const a = Math.abs(v);
    if (a >= 10000) return grouped(Math.round(v));
    if (a >= 100) return v.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    if (a >= 1 || a === 0) return v.toFixed(3);
    return String(Number(v.toPrecision(4)));
  };
  const seconds = (v) => v < 0.0995 ? (1000 * v).toFixed(1) + " ms" : v < 99.95 ? v.toFixed(3) + " s" : v.toFixed(0) + " s";
  const show = (unit, v) => !known(v) ? "–" : unit === "s" ? seconds(v) : unit === "%" ? (100 * v).toFixed(2) + " %" : rate(v);

  const say = (el, text, at) => {
    if (!el) return;
    el.textContent = text;
    el.dataset.reads = at || "";
  };

  // where finds the point of a line that has the step, -1 where there is none.
  const where = (line, first, step) => {
    const all = line.step || first.step;
    let lo = 0, hi = all.length - 1;
    while (lo <= hi) {
      const mid = (lo + hi) >> 1;
      if (all[mid] > step) hi = mid - 1;
      else if (all[mid] + line.per <= step) lo = mid + 1;
      else return mid;
    }
    return -1;
  };

  const chartPoint = (plot, i) => {
    const chart = (data.charts || []).find((c) => c.id === plot.dataset.chart);
    const read = document.getElementById(plot.dataset.chart + "-read");
    const cursor = plot.querySelector(".cursor");
    if (!chart || !cursor) return;
    const run = chart.lines[0];
    i = Math.max(0, Math.min(run.step.length - 1, i));
    plot.dataset.point = i;
    const [x0, x1, y0, y1] = chart.range;
    const x = percent((run.step[i] + run.per / 2 - x0) / (x1 - x0));
    const v = run.values[i];
    cursor.classList.add("on");
    cursor.firstElementChild.setAttribute("x1", x);
    cursor.firstElementChild.setAttribute("x2", x);
    cursor.lastElementChild.setAttribute("cx", x);
    const share = chart.log ? Math.log(v / y0) / Math.log(y1 / y0) : (v - y0) / (y1 - y0);
    cursor.lastElementChild.setAttribute("cy", percent(known(v) ? 1 - Math.min(1, Math.max(0, share)) : 1));
    let text = steps(run.step[i], run.per) + ": " + show(chart.unit, v);
    if (run.min && known(run.min[i])) text += " (" + show(chart.unit, run.min[i]) + " to " + show(chart.unit, run.max[i]) + ")";
    const others = chart.lines.slice(1).map((l) => ({ name: l.name, v: l.values[where(l, run, run.step[i])] })).filter((o) => known(o.v));
    if (others.length > 4) {
      others.sort((a, b) => a.v - b.v);
      others.splice(1, others.length - 2);
    }
    for (const o of others) text += " · " + o.name + " " + show(chart.unit, o.v);
    say(read, text, run.at + " " + i);
  };

  const heatCell = (map, row, column) => {
    const heat = data.heat;
    const mark = map.querySelector(".cell");
    if (!heat || !mark) return;
    row = Math.max(0, Math.min(heat.rows - 1, row));
    column = Math.max(0, Math.min(heat.columns - 1, column));
    map.dataset.row = row;
    map.dataset.column = column;
    mark.setAttribute("x", percent(column / heat.columns));
    mark.setAttribute("y", percent(row / heat.rows));
    mark.setAttribute("width", percent(1 / heat.columns));
    mark.setAttribute("height", percent(1 / heat.rows));
    const at = row * heat.columns + column;
    const who = heat.who && heat.who[at] ? heat.who[at] + ", slowest of " + heat.names[row] : heat.names[row];
    const end = heat.failed && heat.failed[row] ? " · " + heat.failed[row] : "";
    const v = heat.values[at];
    say(document.getElementById("heat-read"), who + " · " + steps(heat.step[column], heat.per) + ": " + (known(v) ? seconds(v) : "no step") + end);
  };

  // Arrow keys move by one, page keys by ten, Home and End to the ends.
  const move = (key, n) => ({ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, -10], PageDown: [10, 10], Home: [0, -1e9], End: [0, 1e9] })[key];

  const fromEnd = (key) => key === "End" || key === "ArrowLeft";

  document.addEventListener("keydown", (e) => {
    const el = e.target;
    const by = el.dataset && move(e.key);
    if (!by || e.ctrlKey || e.metaKey || e.altKey) return;
    if ("chart" in el.dataset) {
      if (by[1] === 0) return;
      const first = el.dataset.point === undefined; // of the end that the key leads from or to
      chartPoint(el, first ? (fromEnd(e.key) ? 1e9 : 0) : Number(el.dataset.point) + by[1]);
    } else if ("heat" in el.dataset) {
      const first = el.dataset.row === undefined;
      const rows = e.key === "PageUp" || e.key === "PageDown";
      heatCell(el, first ? 0 : Number(el.dataset.row) + by[0], first ? (fromEnd(e.key) ? 1e9 : 0) : Number(el.dataset.column) + (rows ? 0 : by[1]));
    } else {
      return;
    }
    e.preventDefault();
  });

  document.addEventListener("pointermove", (e) => {
    const plot = e.target.closest && e.target.closest("[data-chart]");
    if (plot) {
      const chart = (data.charts || []).find((c) => c.id === plot.dataset.chart);
      const box = plot.querySelector("svg").getBoundingClientRect();
      if (!chart || !box.width) return;
      const [x0, x1] = chart.range;
      const step = x0 + (x1 - x0) * Math.max(0, Math.min(0.9999, (e.clientX - box.left) / box.width));
      const run = chart.lines[0];
      let i = where(run, run, step);
      if (i < 0) i = run.step.findIndex((s) => s > step);
      chartPoint(plot, i < 0 ? run.step.length - 1 : i);
      return;
    }
    const map = e.target.closest && e.target.closest("[data-heat]");
    if (map && data.heat) {
      const box = map.getBoundingClientRect();
      heatCell(map, Math.floor((e.clientY - box.top) / box.height * data.heat.rows), Math.floor((e.clientX - box.left) / box.width * data.heat.columns));
    }
  });

  // Tables with data-sort get a button in each head.
  const sortable = (root) => {
    for (const table of root.querySelectorAll("table[data-sort]")) {
      for (const th of table.tHead.rows[0].cells) {
        const button = document.createElement("button");
        button.type = "button";
        button.append(...th.childNodes);
        th.append(button);
      }
    }
  };
  const key = (cell) => {
    const figure = cell && cell.querySelector("data");
    if (figure) return [0, Number(figure.value)];
    const text = cell ? cell.textContent.trim() : "";
    return text === "" || text === "–" ? [2, 0] : [1, text];
  };
  const units = { ms: 1e-3, s: 1 };
  const compare = (a, b) => {
    if (a[0] !== b[0]) return a[0] - b[0];
    if (typeof a[1] === "number") return a[1] - b[1];
    const [x, y] = [a, b].map((k) => /^<?([\d.]+) (ms|s)$/.exec(k[1]));
    if (x && y) return x[1] * units[x[2]] - y[1] * units[y[2]];
    return a[1].localeCompare(b[1], "en", { numeric: true });
  };
  document.addEventListener("click", (e) => {
    const button = e.target.closest && e.target.closest("table[data-sort] th button");
    if (!button) return;
    const th = button.parentElement;
    const table = th.closest("table");
    const down = th.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[th.cellIndex]), row]);
    rows.sort((a, b) => {
      // What is not known comes last either way.
      if (a[0][0] === 2 || b[0][0] === 2) return a[0][0] - b[0][0];
      return down ? compare(a[0], b[0]) : compare(b[0], a[0]);
    });
    table.tBodies[0].append(...rows.map((r) => r[1]));
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => {
    for (const d of opened) d.open = false;
    opened = [];
  });

  // A part is replaced as a whole; what the reader has opened, focused and
  // pointed at stays.
  const replace = (id, html) => {
    const part = document.getElementById(id);
    if (!part) return;
    const open = new Map([...part.querySelectorAll("details[id]")].map((d) => [d.id, d.open]));
    const sorted = [...part.querySelectorAll("table[data-sort]")].map((t) => {
      const th = t.querySelector("th[aria-sort]");
      return th && [th.cellIndex, th.getAttribute("aria-sort")];
    });
    const scrolls = [...part.querySelectorAll(".scroll")].map((s) => [s.scrollLeft, s.scrollTop]);
    const focusable = "[tabindex], summary, button";
    const focus = [...part.querySelectorAll(focusable)].indexOf(document.activeElement);
    const points = [...part.querySelectorAll("[data-chart], [data-heat]")].map((p) => ({ ...p.dataset }));
    part.innerHTML = html; // made by the same templates, which escape; the policy of the page forbids scripts
    if (id === "data") readData();
    sortable(part);
    for (const d of part.querySelectorAll("details[id]")) if (open.has(d.id)) d.open = open.get(d.id);
    part.querySelectorAll("table[data-sort]").forEach((t, i) => {
      if (!sorted[i]) return;
      const th = t.tHead.rows[0].cells[sorted[i][0]];
      if (!th) return;
      if (sorted[i][1] === "ascending") th.setAttribute("aria-sort", "descending");
      th.firstElementChild.click();
    });
    part.querySelectorAll(".scroll").forEach((s, i) => { if (scrolls[i]) [s.scrollLeft, s.scrollTop] = scrolls[i]; });
    for (const p of points) {
      if (p.chart && p.point !== undefined) pending.push(() => { const el = document.querySelector(`[data-chart="${CSS.escape(p.chart)}"]`); if (el) chartPoint(el, Number(p.point)); });
      if ("heat" in p && p.row !== undefined) pending.push(() => { const el = document.querySelector("[data-heat]"); if (el) heatCell(el, Number(p.row), Number(p.column)); });
    }
    const again = part.querySelectorAll(focusable)[focus];
    if (focus >= 0 && again) again.focus({ preventScroll: true });
  };
  let pending = [];

  const live = () => {
    const link = document.getElementById("link");
    const source = new EventSource(document.body.dataset.live);
    source.addEventListener("parts", (e) => {
      pending = [];
      for (const [id, html] of Object.entries(JSON.parse(e.data))) replace(id, html);
      for (const f of pending) f(); // when the data is there
      document.title = document.querySelector(".run").textContent + " · " + document.querySelector(".word").textContent;
    });
    source.addEventListener("end", () => {
      source.close();
      link.textContent = "the run has ended";
    });
    source.addEventListener("open", () => {
      link.textContent = "live";
      link.classList.remove("gone");
    });
    source.addEventListener("error", () => {
      link.textContent = "connection lost, trying again";
      link.classList.add("gone");
    });
  };

  readData();
  sortable(document);
  if (document.body.dataset.live) live();
})();
