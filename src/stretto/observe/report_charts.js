"use strict";
// Small charts as inline SVG: axes with units, one colour per role, a value on hover. No dependencies.
const NS = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function node(parent, tag, attributes = {}, text) {
  const element = document.createElementNS(NS, tag);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}

function html(parent, tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4) {
    const [unit, by] = size >= 1e9 ? ["G", 1e9] : size >= 1e6 ? ["M", 1e6] : ["k", 1e3];
    return Number((value / by).toPrecision(digits)) + unit;
  }
  if (Number.isInteger(value)) return String(value);
  if (size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}
const percent = (value, digits = 3) => (value === null || value === undefined ? "–"
  : (100 * value).toFixed(digits - 3 + (value < 0.0995 && value > 0 ? 1 : 0)) + " %");
// Labels of ticks, with as many digits as it takes that no two of them read the same.
function labels(values, format) {
  for (let digits = 3; digits < 12; digits++) {
    const texts = values.map((v) => format(v, digits));
    if (new Set(texts).size === texts.length) return texts;
  }
  return values.map(String);
}

function seconds(value) {
  if (value >= 5400) return number(value / 3600) + " h";
  if (value >= 180) return number(value / 60) + " min";
  return number(value) + " s";
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function legend(parent, items) {
  const box = html(parent, "div", "legend");
  for (const item of items) {
    const entry = html(box, "span");
    const mark = html(entry, "i", item.mark || "");
    if (item.mark === "box" || item.mark === "dot") mark.style.background = item.color;
    else mark.style.borderTopColor = item.color;
    entry.append(item.name);
  }
  return box;
}

// --- hover -------------------------------------------------------------------------------------------------------
function showTip(event, title, rows) {
  const tip = $("tip");
  tip.textContent = "";
  html(tip, "b", "", title);
  for (const row of rows) {
    const line = html(tip, "div", "row");
    if (row.color) html(line, "i").style.background = row.color;
    html(line, "span", "", row.name);
    line.append(row.value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 14;
  tip.style.left = Math.max(4, x) + "px";
  tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, event.clientY + 14)) + "px";
}
const hideTip = () => { $("tip").hidden = true; };

// --- redraw when the width changes -------------------------------------------------------------------------------
const plotted = new Map();
function chart(id, plot) {
  const element = typeof id === "string" ? $(id) : id;
  plotted.set(element, plot);
  element.textContent = "";
  plot(element, Math.max(200, element.clientWidth));
}
let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => plotted.forEach((plot, element) => chart(element, plot)), 120);
});

function empty(element, text) {
  html(element, "div", "empty", text);
}

// Axes of a chart with data area [left, right] x [top, bottom] in pixels; returns the scales.
function axes(svg, o) {
  const { left, right, top, bottom } = o;
  const px = (v) => left + ((v - o.x0) / (o.x1 - o.x0 || 1)) * (right - left);
  const py = (v) => bottom - ((v - o.y0) / (o.y1 - o.y0 || 1)) * (bottom - top);
  const levels = ticks(o.y0, o.y1, Math.max(3, Math.round((bottom - top) / 42)));
  labels(levels, o.yformat || number).forEach((text, i) => {
    node(svg, "line", { x1: left, x2: right, y1: py(levels[i]), y2: py(levels[i]), class: "grid" });
    node(svg, "text", { x: left - 7, y: py(levels[i]) + 4, "text-anchor": "end" }, text);
  });
  const all = ticks(o.x0, o.x1, Math.max(3, Math.round((right - left) / 90)));
  const marks = o.integerX ? all.filter(Number.isInteger) : all;
  labels(marks, number).forEach((text, i) => node(svg, "text", { x: px(marks[i]), y: bottom + 17, "text-anchor": "middle" }, text));
  node(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  if (o.xlabel) node(svg, "text", { x: right, y: bottom + 33, "text-anchor": "end" }, o.xlabel);
  if (o.ylabel) node(svg, "text", { x: left - 40, y: top - 9 }, o.ylabel);
  return { px, py };
}

function path(xs, ys, px, py) {
  let text = "", pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || ys[i] === undefined) { pen = false; continue; }
    text += (pen ? "L" : "M") + px(xs[i]).toFixed(1) + " " + py(ys[i]).toFixed(1);
    pen = true;
  }
  return text;
}

// Centred moving average over about a thirtieth of the run; short runs stay as they are.
function smooth(y) {
  const half = Math.floor(y.length / 60);
  if (!half) return y;
  return y.map((_, i) => {
    const near = y.slice(Math.max(0, i - half), i + half + 1).filter((v) => v !== null);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : null;
  });
}

// Lines over x. Series: {name, color, y, kind: line | thin | dash | step | area | dots, x?, from? (area's lower edge), value?,
// raw?: don't smooth}. Lines of kind "line" and "thin" are averages with the raw values faint behind them.
function lineChart(element, width, o) {
  const values = o.series.flatMap((s) => s.y.filter((v) => v !== null && v !== undefined));
  const xs = o.x.concat(...o.series.map((s) => s.x || []));
  if (!values.length) return empty(element, o.none || "Nothing recorded.");
  if (o.legend !== false) legend(element, o.series.filter((s) => s.name).map((s) => ({
    name: s.name, color: s.color, mark: { area: "box", dots: "dot", dash: "dash", thin: "thin" }[s.kind] || "" })));
  const height = o.height || 240;
  const svg = node(element, "svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": o.label || "" });
  let y0 = o.y0 ?? Math.min(...values), y1 = o.y1 ?? Math.max(...values);
  if (y1 - y0 < 1e-12) { const pad = Math.abs(y1) * 0.1 || 0.5; y1 += pad; if (o.y0 === undefined) y0 -= pad; }
  else if (o.y1 === undefined) y1 += (y1 - y0) * 0.06;
  let x0 = Math.min(...xs), x1 = Math.max(...xs);
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  const box = { left: 46, right: width - 12, top: o.ylabel ? 24 : 10, bottom: height - (o.xlabel ? 38 : 22) };
  const { px, py } = axes(svg, { ...o, ...box, x0, x1, y0, y1 });
  const lone = values.length <= 2 * o.series.length && o.x.length < 2;
  for (const s of o.series) {
    const sx = s.x || o.x;
    if (s.kind === "area") {
      const lower = s.from || sx.map(() => Math.max(0, y0));
      const keep = sx.map((_, i) => i).filter((i) => s.y[i] !== null && lower[i] !== null);
      const up = keep.map((i) => `${px(sx[i]).toFixed(1)} ${py(s.y[i]).toFixed(1)}`);
      const down = keep.reverse().map((i) => `${px(sx[i]).toFixed(1)} ${py(lower[i]).toFixed(1)}`);
      if (up.length) node(svg, "path", { d: `M${up.concat(down).join("L")}Z`, fill: s.color, opacity: 0.45 });
    } else if (s.kind !== "dots") {
      const style = { thin: [1.5, ""], dash: [1.6, "6 5"] }[s.kind] || [2.3, ""];
      const y = s.raw || s.kind === "dash" ? s.y : smooth(s.y);
      if (y !== s.y) node(svg, "path", { d: path(sx, s.y, px, py), fill: "none", stroke: s.color, "stroke-width": 1, opacity: 0.28 });
      node(svg, "path", { d: path(sx, y, px, py), fill: "none", stroke: s.color, "stroke-width": style[0],
        "stroke-dasharray": style[1], "stroke-linejoin": "round", "stroke-linecap": "round", opacity: 1 });
    }
    if (s.kind === "dots" || lone)
      sx.forEach((x, i) => s.y[i] !== null && node(svg, "circle", { cx: px(x), cy: py(s.y[i]), r: 4, fill: s.color }));
    if (s.kind === "dots" && sx.length > 1)
      node(svg, "path", { d: path(sx, s.y, px, py), fill: "none", stroke: s.color, "stroke-width": 1.2, opacity: 0.6 });
  }
  const cross = node(svg, "line", { y1: box.top, y2: box.bottom, class: "axis", visibility: "hidden" });
  svg.addEventListener("pointerleave", () => { hideTip(); cross.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const nearest = (list) => list.reduce((b, x, i) => (Math.abs(px(x) - at) < Math.abs(px(list[b]) - at) ? i : b), 0);
    if (!o.x.length) return;
    const i = nearest(o.x);
    cross.setAttribute("x1", px(o.x[i])); cross.setAttribute("x2", px(o.x[i])); cross.setAttribute("visibility", "visible");
    const rows = [];
    for (const s of o.series) {
      if (!s.name) continue;
      const k = s.x ? nearest(s.x) : i;
      const value = (s.value || s.y)[k];
      if (value === null || value === undefined || (s.x && Math.abs(px(s.x[k]) - px(o.x[i])) > 30)) continue;
      rows.push({ name: s.name + (s.note ? s.note(k) : ""), color: s.color, value: (o.yformat || number)(value) });
    }
    showTip(event, o.title ? o.title(i) : `${o.xlabel || ""} ${number(o.x[i])}`, rows);
  });
}

// Vertical bars: items {label, value, color, tip}.
function barChart(element, width, o) {
  if (!o.items.length) return empty(element, "No token has trained yet.");
  const height = o.height || 240;
  const svg = node(element, "svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": o.label });
  const box = { left: 46, right: width - 8, top: 24, bottom: height - 38 };
  const top = Math.max(...o.items.map((item) => item.value));
  const n = o.items.length, slot = (box.right - box.left) / n;
  const { py } = axes(svg, { ...box, x0: 0, x1: 0, y0: 0, y1: top * 1.12 || 1, yformat: percent, ylabel: o.ylabel });
  svg.querySelectorAll("text[text-anchor=middle]").forEach((t) => t.remove());
  const every = Math.ceil(26 / slot);
  o.items.forEach((item, i) => {
    const w = Math.max(1, Math.min(70, slot * 0.72)), x = box.left + slot * (i + 0.5);
    const bar = node(svg, "rect", { x: x - w / 2, y: py(item.value), width: w, height: Math.max(0, box.bottom - py(item.value)), rx: Math.min(4, w / 4), fill: item.color });
    if (i % every === 0) node(svg, "text", { x, y: box.bottom + 17, "text-anchor": "middle" }, item.label);
    if (slot > 44) node(svg, "text", { x, y: py(item.value) - 6, "text-anchor": "middle", class: "strong" }, percent(item.value));
    bar.addEventListener("pointermove", (event) => showTip(event, item.title, item.tip));
    bar.addEventListener("pointerleave", hideTip);
  });
  node(svg, "text", { x: box.right, y: box.bottom + 33, "text-anchor": "end" }, o.xlabel);
}

function switcher(id, options, chosen, choose) {
  const box = $(id);
  box.textContent = "";
  for (const [key, name] of options) {
    const button = html(box, "button", "", name);
    button.type = "button";
    button.setAttribute("aria-pressed", key === chosen);
    button.onclick = () => { choose(key); switcher(id, options, key, choose); };
  }
}
