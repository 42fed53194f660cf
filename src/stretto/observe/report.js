"use strict";
const D = JSON.parse($("data").textContent);
const color = (name) => `var(--${name})`;
const S = D.steps, start = D.start, summary = D.summary;
const column = (name) => S[name] || (S.step || []).map(() => null);
const has = (name) => name in S && S[name].some((v) => v !== null);
const bound = start.lag_bound ?? null;
const shade = (age) => color("s" + Math.min(5, bound > 5 ? Math.round((5 * age) / bound) : age));
const tail = (name) => {
  const values = column(name).filter((v) => v !== null);
  const last = values.slice(-Math.max(1, Math.round(values.length / 10)));
  return last.length ? last.reduce((a, b) => a + b, 0) / last.length : null;
};
const span = D.timeline.end - D.timeline.begin;

function facts() {
  const box = $("facts");
  const open = !summary.complete;
  const fine = ["done", "max_steps", "epochs"].includes(summary.reason);
  const warned = D.findings.filter((f) => f.level === "warning").length;
  const state = open ? "Not finished: the log has no end" : fine ? "Finished" : `Ended early: ${summary.reason}`;
  const text = warned ? `${state}, with ${warned} warning${warned === 1 ? "" : "s"}` : state;
  html(box, "span", "status" + (fine && !warned ? "" : " open"), text);
  const mode = { train: "real training", rehearse: "rehearsal on a virtual clock", simulate: "simulation, no model" }[start.mode] || start.mode;
  const parts = [mode, `${start.prompts_per_step} prompts × ${start.group_size} per step`,
    `lag bound ${bound}`, `${start.engines} engine${start.engines === 1 ? "" : "s"} × ${start.max_num_seqs} slots`,
    `weights in flight: ${start.in_flight}`, `seed ${start.seed}`];
  if (D.resumes.length) parts.push(`resumed ${D.resumes.length}×`);
  box.append(" · " + (start.mode ? parts.join(" · ") : "no RunStart in the log"));
}

function findings() {
  const box = $("findings");
  box.hidden = !D.findings.length;
  for (const f of D.findings) {
    const line = html(box, "p", "finding " + f.level);
    html(line, "b", "", f.what[0].toUpperCase() + f.what.slice(1) + ". ");
    line.append(f.do);
  }
}

function tile(name, value, small, note) {
  const box = html($("headline"), "div", "tile");
  html(box, "div", "name", name);
  const figure = html(box, "div", "value", value);
  if (small) html(figure, "small", "", " " + small);
  html(box, "div", "note", note || "\u00a0");
}

// the reward is that of valid ones alone: say what share there was none of
const failedShare = () => {
  const valid = tail("reward/valid_fraction");
  return valid === null || valid > 0.995 ? "" : `; ${percent(1 - valid)} had none`;
};
function headline() {
  const e = summary.eval, l = D.ledger;
  if (e.accuracy !== null) tile("Held-out accuracy", percent(e.accuracy), "", e.evaluations > 1 ? `from ${percent(e.initial_accuracy)} at the start` : "one evaluation");
  const reward = tail("reward/trained/mean");
  if (reward !== null) tile("Reward, trained", number(reward), "", `last tenth; all completed: ${number(tail("reward/all/mean"))}${failedShare()}`);
  tile("Staleness", number(summary.staleness.mean), "mean", `max ${summary.staleness.max} of bound ${bound ?? "–"}`);
  if (summary.collapse !== null) tile("Collapse", number(summary.collapse), "step", "reward below 70 % of its best");
  tile("Steps", number(summary.steps), start.max_steps ? `of ${number(start.max_steps)}` : "", `version ${summary.version}, ${seconds(span < 1e-6 ? 0 : span)}`);
  const used = l.submitted[1] ? l.trained[1] / (l.submitted[1] - l.open[1] || 1) : null;
  tile("Tokens trained", number(l.trained[1]), "", used === null ? "" : `${percent(used)} of those that ended`);
  if (D.step_count) tile("Idle", percent(mean(D.idle.learner)), "learner", `engine ${percent(mean(D.idle.engine))}, environment ${percent(mean(D.idle.env))}`);
}
const mean = (v) => {
  const t = column("time/step");
  let sum = 0, weight = 0;
  v.forEach((x, i) => { if (x !== null && t[i]) { sum += x * t[i]; weight += t[i]; } });
  return weight ? sum / weight : null;
};

let axis = "step";
const X = () => (axis === "step" ? column("step") : column("t").map((t) => t - D.timeline.begin));
const common = () => ({ x: X(), xlabel: axis === "step" ? "learner step" : "run's clock, s", integerX: axis === "step",
  title: (i) => `step ${column("step")[i]} · version ${column("version")[i]} · ${seconds(column("t")[i] - D.timeline.begin)}`,
  none: "No learner step has ended yet." });

function curves() {
  chart("learning", (el, w) => {
    const ex = D.evals.map((e) => (axis === "step" ? e[0] : e[1] - D.timeline.begin));
    const series = [
      { name: "reward, all completed", color: color("engine"), y: column("reward/all/mean"), kind: "thin" },
      { name: "reward, trained", color: color("learner"), y: column("reward/trained/mean") },
      { name: "accuracy, held out", color: color("eval"), x: ex, y: D.evals.map((e) => e[2]), kind: "dots",
        note: (k) => ` (version ${D.evals[k][3]}, n = ${D.evals[k][4]})` }];
    const all = series.flatMap((s) => s.y).filter((v) => v !== null);
    const unit = all.length && Math.min(...all) >= 0 && Math.max(...all) <= 1;
    lineChart(el, w, { ...common(), series: series.filter((s) => s.y.some((v) => v !== null)), height: 310, ...(unit ? { y0: 0, y1: 1 } : {}), ylabel: "reward, accuracy", label: "Learning curve" });
  });
  chart("stale-time", (el, w) => {
    const gen = column("staleness/generation"), wait = column("staleness/waiting"), total = column("staleness/mean");
    lineChart(el, w, { ...common(), y0: 0, ylabel: "versions", label: "Staleness over the run", height: 265, series: has("staleness/mean") ? [
      { name: "generating", color: color("engine"), y: gen, kind: "area" },
      { name: "waiting", color: color("pool"), y: total, value: wait, from: gen, kind: "area" },
      { name: "mean", color: color("learner"), y: total, raw: true },
      { name: "95th percentile", color: color("publish"), y: column("staleness/p95"), kind: "thin", raw: true },
      { name: "max", color: color("bad"), y: column("staleness/max"), kind: "thin", raw: true },
      { name: `lag bound ${bound}`, color: color("ink"), y: column("step").map(() => bound), kind: "dash" }] : [] });
  });
  chart("idle", (el, w) => lineChart(el, w, { ...common(), y0: 0, y1: 1, yformat: percent, height: 210, label: "Idle shares", series: [
    ["learner", "learner"], ["engine", "engine"], ["env", "environment"]].map(([k, n]) => ({ name: n, color: color(k), y: D.idle[k] })) }));
  chart("speed", (el, w) => lineChart(el, w, { ...common(), y0: 0, height: 210, label: "Tokens per second", series: [
    { name: "generated", color: color("engine"), y: column("tokens_per_s/generated"), kind: "thin" },
    { name: "trained", color: color("learner"), y: column("tokens_per_s/trained") }] }));
  chart("pool", (el, w) => lineChart(el, w, { ...common(), y0: 0, height: 210, label: "Pool and in flight", series: [
    { name: "groups ready", color: color("pool"), y: column("pool/size") },
    { name: "trajectories in flight", color: color("engine"), y: column("in_flight"), kind: "thin" }] }));
  chart("log-ratio", (el, w) => lineChart(el, w, { ...common(), height: 210, label: "Log-ratio of current and behaviour policy", ylabel: "nats", series: ["q05", "q50", "q95"].map(q =>
    ({ name: q, color: color(q === "q50" ? "learner" : "idle"), y: column("log_ratio/" + q), kind: q === "q50" ? undefined : "thin" })) }));
  const bins = D.learner_metrics.filter(name => name.startsWith("log_ratio/q95@")).map(name => name.split("@")[1]).sort((a, b) => parseInt(a) - parseInt(b));
  chart("log-ratio-age", (el, w) => lineChart(el, w, { ...common(), y0: 0, height: 210, label: "Spread of the log-ratio by staleness", ylabel: "nats, 5 % to 95 %", series: bins.map((bin, i) =>
    ({ name: "staleness " + bin, color: shade(parseInt(bin)), kind: "thin", y: column("log_ratio/q95@" + bin).map((high, k) => high === null ? null : high - S["log_ratio/q05@" + bin][k]) })) }));
  $("distance-section").hidden = !has("log_ratio/q50");
  health();
}

const FIXED = ["group/zero_variance_fraction", "length/mean", "truncated", "turns/mean", "reward/valid_fraction", "time/train", "sync/pause_s"];
const UNIT = { "length/mean": "policy tokens", "time/train": "s per step", "sync/pause_s": "s", "grad_norm": "before clipping",
  "entropy": "nats per token", "off_policy/kl": "nats", "turns/mean": "per trajectory" };
function health() {
  const names = [...new Set([...D.learner_metrics.filter(name => !/^(log_)?ratio\/q/.test(name)), ...FIXED])].filter(has).slice(0, 24);
  $("health-section").hidden = !names.length;
  const box = $("health");
  for (const child of box.querySelectorAll(".chart")) plotted.delete(child);
  box.textContent = "";
  for (const name of names) {
    const cell = html(box, "div");
    const title = html(cell, "h3", "", name);
    if (UNIT[name]) html(title, "small", "", "  " + UNIT[name]).style.cssText = "color:var(--soft);font-weight:400";
    const tint = color(D.learner_metrics.includes(name) || name.startsWith("time/train") ? "learner" : "engine");
    chart(html(cell, "div", "chart"), (el, w) => lineChart(el, w, { ...common(), xlabel: "", legend: false, height: 120, label: name, series: [{ name, color: tint, y: column(name), kind: "line" }] }));
  }
}

function histogram() {
  const total = D.staleness.reduce((sum, [, n]) => sum + n, 0);
  const top = Math.max(bound || 0, ...D.staleness.map(([age]) => age));
  const by = Object.fromEntries(D.staleness);
  chart("stale-hist", (el, w) => barChart(el, w, { height: 289, label: "Staleness histogram", ylabel: "share of tokens", xlabel: "staleness, versions", items: total ? Array.from({ length: top + 1 }, (_, age) => ({
    label: String(age), value: (by[age] || 0) / total, color: shade(age), title: `staleness ${age}`,
    tip: [{ name: "tokens", value: number(by[age] || 0) }, { name: "share", value: percent((by[age] || 0) / total) }] })) : [] }));
}

const ENDS = [["trained", "learner"], ["rejected", "bad"], ["filtered", "pool"], ["failed", "eval"], ["cancelled", "publish"], ["open", "idle"]];
function ledger() {
  const box = $("ledger"), L = D.ledger;
  if (!L.submitted[0]) return empty(box, "Nothing was submitted.");
  [["Trajectories", 0], ["Policy tokens", 1]].forEach(([title, part]) => {
    html(box, "h3", "", `${title}: ${number(L.submitted[part])}`);
    const stack = html(box, "div", "stack");
    for (const [name, tint] of ENDS) {
      if (!L[name][part]) continue;
      const piece = html(stack, "div");
      piece.style.cssText = `flex:${L[name][part]};background:${color(tint)}`;
      piece.addEventListener("pointermove", (e) => showTip(e, name, [{ name: title.toLowerCase(), value: number(L[name][part]) }, { name: "share", value: percent(L[name][part] / L.submitted[part]) }]));
      piece.addEventListener("pointerleave", hideTip);
    }
  });
  const reasons = (name) => D.reasons.filter(([ending]) => ending === name).map(([, reason, n]) => `${reason} (${number(n)})`).join(", ");
  table(box, ["Ending", "Trajectories", "Share", "Tokens", "Share", "Why"], ENDS.map(([name, tint]) => [
    { text: name, tint }, number(L[name][0]), percent(L[name][0] / L.submitted[0]), number(L[name][1]),
    percent(L.submitted[1] ? L[name][1] / L.submitted[1] : 0), name === "open" ? (L.open[0] ? "not ended when the log was read" : "") : reasons(name)]), [1, 2, 3, 4]);
}
function table(parent, heads, rows, numeric = []) {
  const t = html(html(parent, "div", "scroll"), "table");
  const head = html(html(t, "thead"), "tr");
  heads.forEach((text, i) => html(head, "th", numeric.includes(i) ? "num" : "", text));
  const body = html(t, "tbody");
  for (const row of rows) {
    const line = html(body, "tr");
    row.forEach((cell, i) => {
      const td = html(line, "td", numeric.includes(i) ? "num" : "");
      if (cell && cell.tint) html(td, "span", "swatch").style.background = color(cell.tint);
      td.append(cell && cell.text !== undefined ? cell.text : cell);
    });
  }
}

function samples() {
  const steps = [...new Set(D.samples.map((s) => s.step))];
  if (!steps.length) { $("samples-section").hidden = true; return; }
  const top = Math.max(bound || 0, 0), all = Array.from({ length: Math.min(6, top + 1) }, (_, i) => (top > 5 ? Math.round((i * top) / 5) : i));
  for (const age of all) {
    const entry = html($("sample-legend"), "span");
    const mark = html(entry, "i", "box"); mark.style.background = shade(age);
    entry.append(age === 0 ? "fresh (staleness 0)" : `${age} version${age > 1 ? "s" : ""} old`);
  }
  const pick = $("sample-pick");
  for (const step of steps) html(pick, "option", "", String(D.samples.find((s) => s.step === step).version)).value = step;
  pick.value = steps[steps.length - 1];
  pick.onchange = () => showSamples(Number(pick.value));
  showSamples(Number(pick.value));
}
function showSamples(step) {
  const box = $("samples");
  box.textContent = "";
  for (const s of D.samples.filter((x) => x.step === step)) {
    const card = html(box, "div", "sample"), meta = html(card, "div", "meta");
    const fact = (name, value) => { const f = html(meta, "span", "", name + " "); html(f, "b", "", value); };
    fact("reward", s.reward === null ? "absent" : number(s.reward));
    if (s.advantage !== null && s.advantage !== undefined) fact("advantage", (s.advantage > 0 ? "+" : "") + number(s.advantage));
    if (s.answer !== null && s.answer !== undefined) fact("expected", s.answer);
    const versions = [...new Set(s.pieces.filter((p) => p.mask).map((p) => p.version))];
    fact(versions.length > 1 ? "versions" : "version", versions.join(" → ") || "–");
    fact("trajectory", `${s.trajectory}, group ${s.group}`);
    const text = html(card, "div", "tokens");
    for (const p of s.pieces) {
      const span = html(text, "span", p.mask ? "tok" : "given", p.text);
      if (!p.mask) continue;
      span.style.background = shade(s.version - p.version);
      const rows = [{ name: "token", value: String(p.id) }, { name: "version", value: String(p.version) }, { name: "staleness", value: String(s.version - p.version) },
        { name: "log-probability", value: number(p.logprob) }, { name: "ratio", value: p.ratio === null ? "not recorded" : number(p.ratio) }];
      for (const kind of ["pointermove", "pointerdown"]) span.addEventListener(kind, (e) => showTip(e, JSON.stringify(p.text), rows));
      span.addEventListener("pointerleave", hideTip);
    }
    if (s.cut) html(text, "span", "given", ` … ${s.cut} more tokens are in rollouts/`);
  }
}

function heldOut() {
  const played = D.held_out.filter((e) => e.length);
  $("held-out-section").hidden = !played.length;
  for (const samples of played) {
    html($("held-out"), "h3", "", `Version ${samples[0].version}`);
    table($("held-out"), ["Asked", "Answered", "Expected", "Reward"], samples.map((s) => [
      s.prompt ?? "", s.completion ?? "", s.answer ?? "–", s.reward === null ? "absent" : number(s.reward)]), [3]);
  }
}

function faults() {
  const box = $("faults");
  if (!D.faults.length && !D.waits.length) return empty(box, "None: no wait passed its warning time, nothing failed.");
  if (D.waits.length) {
    html(box, "h3", "", "Long waits");
    table(box, ["Who", "For what", "Times", "Longest"], D.waits.map(([who, what, n, longest]) => [who, what, number(n), seconds(longest)]), [2, 3]);
  }
  if (D.faults.length) {
    html(box, "h3", "", D.fault_count > D.faults.length ? `Faults (last ${D.faults.length} of ${D.fault_count})` : "Faults");
    table(box, ["At", "Where", "What"], D.faults.map((f) => [seconds(f.t - D.timeline.begin), f.where, f.what]));
  }
}

facts(); findings(); headline(); curves(); histogram(); timeline(); ledger(); samples(); heldOut(); faults();
switcher("x-switch", [["step", "by step"], ["t", "by time"]], axis, (key) => { axis = key; curves(); });
if (!$("config").textContent) $("config").parentNode.parentNode.hidden = true;
