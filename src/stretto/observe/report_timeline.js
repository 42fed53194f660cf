"use strict";
// --- timeline: "all" is the busy share per bin of the whole run; a window shows single spans and can be zoomed -------
let view = null;
function timeline() {
  const T = D.timeline;
  if (span < 1e-6) return empty($("timeline"), "No time has passed yet.");
  const named = T.windows.map((w, i) => [i, w.name === "whole run" ? "detail" : w.name]);
  const choose = (key) => { view = key === "all" ? null : { ...T.windows[key], low: T.windows[key].begin, high: T.windows[key].end }; drawTimeline(); };
  const first = D.step_count ? Math.floor(T.windows.length / 2) : "all";
  switcher("window-switch", [["all", "whole run"], ...named], first, choose);
  choose(first);
}
function drawTimeline() {
  const few = D.timeline.shown;
  $("timeline-lead").textContent = (few ? `${few} are shown one by one${view ? "" : "; the mean is that of all"}. ` : "") + (view
    ? "Each bar is work from start to end; a darker engine bar decodes more rows. Drag to move, + and − to zoom."
    : "Share of time at work, the whole run in 300 columns; the environments' strip counts calls at once.");
  chart("timeline", (el, w) => {
    const T = D.timeline, low = view ? view.low : T.begin, high = view ? view.high : T.end;
    const lanes = [];
    const engines = view ? view.engines : T.overview.engines;
    for (const name in engines) lanes.push({ name, data: engines[name], role: "engine" });
    lanes.push({ name: "environments", data: view ? view.env : T.overview.env, role: "env" });
    lanes.push({ name: "learner", data: view ? view.learner : T.overview.learner, role: "learner" });
    const legends = [["engine", "engine"], ["env", "environment calls"], ["learner", "learner step"]];
    if (view) legends.push(["publish", "weights published (line), loading (block)"], ["eval", "evaluation"]);
    legend(el, legends.map(([c, name]) => ({ name, color: color(c), mark: "box" })));
    const narrow = w < 560, left = narrow ? 8 : 118, right = w - 14, tall = narrow ? 48 : 34, bar = 24;
    const height = 20 + lanes.length * tall + 40;
    const svg = node(el, "svg", { height, viewBox: `0 0 ${w} ${height}`, role: "img", "aria-label": "Timeline" });
    const clip = node(node(svg, "clipPath", { id: "lanes" }), "rect", { x: left, y: 0, width: right - left, height });
    const px = (t) => left + ((t - low) / (high - low)) * (right - left);
    const top = 16, bottom = top + lanes.length * tall;
    const marks = ticks(low - T.begin, high - T.begin, Math.round((right - left) / 90));
    labels(marks, (v, digits) => number(v, digits + 2)).forEach((text, i) => {
      const x = px(marks[i] + T.begin);
      node(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" });
      node(svg, "text", { x, y: bottom + 16, "text-anchor": "middle" }, text);
    });
    node(svg, "text", { x: right, y: bottom + 32, "text-anchor": "end" }, "run's clock, s");
    const inner = node(svg, "g", { "clip-path": "url(#lanes)" });
    const late = [];
    lanes.forEach((lane, k) => {
      const y = top + k * tall + (narrow ? 18 : 4);
      node(svg, "text", narrow ? { x: left, y: y - 5 } : { x: left - 10, y: y + 16, "text-anchor": "end" }, lane.name);
      if (view && lane.role !== "env") {
        for (const [a, b, version] of (lane.role === "engine" && view.loads[lane.name]) || []) {
          if (b < low || a > high) continue;
          const rect = node(inner, "rect", { x: px(a), y: y + bar - 5, width: Math.max(2, px(b) - px(a)), height: 8, rx: 1, fill: color("publish") });
          hover(rect, lane.name + " loads weights", a, b, [{ name: "version", value: String(version) }]);
          late.push(rect);
        }
        for (const [a, b, weight] of lane.data) {
          if (b < low || a > high) continue;
          const rect = node(inner, "rect", { x: px(a), y, width: Math.max(1, px(b) - px(a) - 0.5), height: bar, rx: 2,
            fill: color(lane.role), opacity: lane.role === "engine" ? 0.3 + 0.7 * Math.min(1, weight / (start.max_num_seqs || 1)) : 0.95 });
          const tip = lane.role === "engine" ? { name: "rows, mean", value: number(weight) } : { name: "step", value: String(weight) };
          hover(rect, lane.name, a, b, [tip]);
        }
      } else strip(inner, lane, y, bar, view ? view.begin : T.begin, view ? view.end : T.end, px);
    });
    if (view) {
      for (const [a, b, version] of view.eval) {
        const rect = node(inner, "rect", { x: px(a), y: 12, width: Math.max(2, px(b) - px(a)), height: bottom - 12, fill: color("eval"), opacity: 0.16 });
        hover(rect, "evaluation", a, b, [{ name: "version", value: String(version) }]);
      }
      for (const [a, b, version] of view.publish) {
        node(inner, "rect", { x: px(a) - 0.75, y: 12, width: 1.5, height: bottom - 12, fill: color("publish") });
        if (px(b) - left > 0 && (right - left) / view.publish.length > 16) node(inner, "text", { x: (px(a) + px(b)) / 2, y: 9, "text-anchor": "middle", style: "font-size:11px" }, "v" + version);
      }
      late.forEach((rect) => inner.appendChild(rect));
      drag(svg, right - left);
      const zoom = html(el, "div", "switch zoom");
      for (const [name, by, label] of [["−", 1.6, "zoom out"], ["+", 1 / 1.6, "zoom in"]]) {
        const button = html(zoom, "button", "", name);
        button.type = "button"; button.setAttribute("aria-label", label);
        button.onclick = () => move((view.low + view.high) / 2, (view.high - view.low) * by);
      }
    }
  });
}
function strip(group, lane, y, bar, low, high, px) {
  const top = lane.role === "env" ? Math.max(1e-9, ...lane.data) : 1, n = lane.data.length, step = (high - low) / n;
  let d = `M${px(low)} ${y + bar}`;
  lane.data.forEach((v, i) => { d += `V${(y + bar - (v / top) * bar).toFixed(1)}H${px(low + (i + 1) * step).toFixed(1)}`; });
  node(group, "rect", { x: px(low), y, width: px(high) - px(low), height: bar, fill: color("chip") });
  node(group, "path", { d: d + `V${y + bar}Z`, fill: color(lane.role) });
  const cover = node(group, "rect", { x: px(low), y, width: px(high) - px(low), height: bar, fill: "transparent" });
  cover.addEventListener("pointerleave", hideTip);
  cover.addEventListener("pointermove", (event) => {
    const box = cover.getBoundingClientRect();
    const i = Math.min(n - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * n)));
    showTip(event, lane.name, [{ name: "at", value: number(low + (i + 0.5) * step - D.timeline.begin, 5) + " s" },
      lane.role === "env" ? { name: "calls at once", value: number(lane.data[i]) } : { name: "at work", value: percent(lane.data[i]) }]);
  });
}
function hover(element, title, a, b, rows) {
  element.addEventListener("pointermove", (event) => showTip(event, title, [...rows,
    { name: "from", value: number(a - D.timeline.begin, 6) + " s" }, { name: "took", value: number(b - a) + " s" }]));
  element.addEventListener("pointerleave", hideTip);
}
function move(centre, width) {
  width = Math.min(view.end - view.begin, Math.max((view.end - view.begin) / 200, width));
  view.low = Math.min(Math.max(view.begin, centre - width / 2), view.end - width);
  view.high = view.low + width;
  drawTimeline();
}
function drag(svg, pixels) {
  svg.addEventListener("pointerdown", (event) => {
    const from = event.clientX, centre = (view.low + view.high) / 2, width = view.high - view.low;
    const follow = (e) => { if (Math.abs(e.clientX - from) > 3) move(centre - ((e.clientX - from) / pixels) * width, width); };
    const stop = () => { removeEventListener("pointermove", follow); removeEventListener("pointerup", stop); removeEventListener("pointercancel", stop); };
    addEventListener("pointermove", follow); addEventListener("pointerup", stop); addEventListener("pointercancel", stop);
  });
}
