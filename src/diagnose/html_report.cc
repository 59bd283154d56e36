#include "diagnose/html_report.h"

#include <string_view>

namespace hexport::diagnose {
namespace {

constexpr std::string_view kHead = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hexport diagnose</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 0 12px 48px; max-width: 1100px; }
h1 { font-size: 1.3em; margin: 16px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.1em; margin: 24px 0 8px; }
p { margin: 4px 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; margin: 8px 0; overflow-wrap: anywhere; }
.card b { font-family: ui-monospace, monospace; font-weight: 600; }
.flag { color: #c22; font-weight: 600; }
.choices { display: flex; flex-wrap: wrap; gap: 8px; margin: 8px 0; }
.choices button { font: inherit; padding: 6px 12px; border: 1px solid var(--line); border-radius: 999px; background: none;
  color: inherit; }
.choices button[aria-pressed=true] { background: #36c; color: #fff; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; font-size: 12px; }
th { font-weight: 500; text-align: left; padding: 2px 8px; white-space: nowrap; }
thead th { text-align: center; padding: 2px 4px; }
tbody th { position: sticky; left: 0; background: Canvas; max-width: 44vw; overflow: hidden; text-overflow: ellipsis; }
td { padding: 1px; }
td button { display: block; width: 26px; height: 22px; border: 0; border-radius: 3px; padding: 0; }
td button.bad { outline: 2px solid #c22; outline-offset: -2px; }
td button.shown { outline: 3px solid CanvasText; outline-offset: -3px; }
.legend { display: flex; align-items: center; gap: 4px; font-size: 12px; margin: 6px 0; flex-wrap: wrap; }
.legend i { width: 26px; height: 12px; border-radius: 3px; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 2px 12px; margin: 8px 0; }
dt { opacity: .7; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; }
</style>
</head>
<body>
<h1 id="title"></h1>
<div id="summary"></div>
<h2>Findings</h2>
<div id="findings"></div>
<div id="repairs"></div>
<h2>Tensors by layer</h2>
<div class="choices" id="choices"></div>
<div class="legend" id="legend"></div>
<div class="scroll"><table id="map"></table></div>
<h2>Tensor</h2>
<div id="tensor" class="card">Choose a cell of the map.</div>
<script id="data" type="application/json">)html";

constexpr std::string_view kTail = R"html(</script>
<script>
"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
const states = { before: report };
if (report.after) states.after = report.after;
const view = { state: "before", run: "inherited", tensor: null };
const element = (name, text, parent) => {
  const out = document.createElement(name);
  if (text !== undefined) out.textContent = text;
  if (parent) parent.append(out);
  return out;
};
const byId = (id) => document.getElementById(id);
const number = (value) => value === null || value === undefined ? "–" : Number(value.toPrecision(5)).toString();
// SQNR in dB to a color: 0 and below red, 20 yellow, 60 and above green.
const color = (db) => {
  const hue = db < 20 ? Math.max(0, db) * 2.5 : 50 + Math.min(40, db - 20) * 2.25;
  return `hsl(${hue} 75% 48%)`;
};
// "layers.3.mlp.gated" -> row "mlp.gated"; "past_key_3_out" -> "past_key_out".
const rowOf = (tensor) => tensor.layer === null ? tensor.tensor
  : tensor.tensor.replace(/^layers\.\d+\./, tensor.tensor.endsWith(".input") ? "next " : "").replace(/_\d+_out$/, "_out")
      .replace(/^norm\.input$/, "next input");
const isBad = (agreement) => agreement.sqnr_db < -10 * Math.log10(1 - report.threshold ** 2);

function showSummary() {
  byId("title").textContent = report.target;
  const box = byId("summary");
  element("p", `${report.samples} samples, ${report.tokens} tokens; a finding is below a cosine of ${report.threshold}.`, box);
  for (const [name, state] of Object.entries(states)) {
    const line = element("p", `${name === "after" ? "Repaired (" + report.fixed + ")" : "Measured"}: logits' cosine with float `
      + `${number(state.logits.cosine)}, same best token ${number(100 * state.logits.top1)} %. `, box);
    if (state.flagged) element("span", "Flagged: below .99.", line).className = "flag";
  }
}

function showFindings() {
  const box = byId("findings");
  const own = report.findings.filter((finding) => finding.kind === "own");
  const inherited = report.findings.length - own.length;
  if (!report.findings.length) element("p", "No tensor is below the threshold.", box);
  for (const finding of own) {
    const card = element("div", undefined, box);
    card.className = "card";
    element("b", finding.tensor, card);
    element("p", `cosine ${number(finding.cosine)}, SQNR ${number(finding.sqnr_db)} dB`, card);
    element("p", finding.reason, card);
    element("p", "Fix: " + finding.fix, card);
  }
  if (inherited) element("p", `${inherited} more tensors inherit errors of earlier ones.`, box);
  if (!report.repairs) return;
  element("h2", "Repairs", byId("repairs"));
  for (const repair of report.repairs) {
    const card = element("div", undefined, byId("repairs"));
    card.className = "card";
    element("b", repair.tensor, card);
    element("p", `cosine ${number(repair.cosine_before)} → ${number(repair.cosine_after)}`, card);
    for (const remedy of repair.remedies) element("p", remedy, card);
  }
}

function showChoices() {
  const box = byId("choices");
  box.replaceChildren();
  const choose = (key, value, text) => {
    const button = element("button", text, box);
    button.setAttribute("aria-pressed", view[key] === value);
    button.onclick = () => { view[key] = value; showAll(); };
  };
  choose("run", "own", "Own: float inputs");
  choose("run", "inherited", "Inherited: quantized inputs");
  if (states.after) {
    choose("state", "before", "Before");
    choose("state", "after", "After the repair");
  }
  const legend = byId("legend");
  legend.replaceChildren();
  element("span", "SQNR in dB:", legend);
  for (const db of [0, 10, 20, 30, 45, 60]) {
    element("i", undefined, legend).style.background = color(db);
    element("span", db === 60 ? "60 and more" : String(db), legend);
  }
}

function showMap() {
  const table = byId("map");
  table.replaceChildren();
  const rows = new Map(), layers = new Set();
  for (const tensor of states[view.state].tensors) {
    const row = rowOf(tensor);
    if (!rows.has(row)) rows.set(row, new Map());
    rows.get(row).set(tensor.layer, tensor);
    layers.add(tensor.layer);
  }
  const columns = [...layers].filter((layer) => layer !== null).sort((a, b) => a - b);
  if (layers.has(null)) columns.push(null);
  const head = element("tr", undefined, element("thead", undefined, table));
  element("th", "layer", head);
  for (const layer of columns) element("th", layer === null ? "–" : String(layer), head);
  const body = element("tbody", undefined, table);
  for (const [name, cells] of rows) {
    const row = element("tr", undefined, body);
    element("th", name, row).title = name;
    for (const layer of columns) {
      const cell = element("td", undefined, row), tensor = cells.get(layer);
      if (!tensor) continue;
      const button = element("button", undefined, cell), agreement = tensor[view.run];
      button.style.background = color(agreement.sqnr_db);
      button.title = `${tensor.tensor}: cosine ${number(agreement.cosine)}`;
      button.setAttribute("aria-label", button.title);
      if (isBad(agreement)) button.classList.add("bad");
      if (tensor.tensor === view.tensor) button.classList.add("shown");
      button.onclick = () => { view.tensor = tensor.tensor; showAll(); };
    }
  }
}

// Counts as bars over the values' range, with the encoding's ends marked where they lie within.
function histogram(tensor) {
  const width = 640, height = 140, counts = tensor.histogram;
  const most = Math.log1p(Math.max(...counts, 1));
  const low = Math.min(tensor.min, tensor.encoding_min ?? tensor.min);
  const high = Math.max(tensor.max, tensor.encoding_max ?? tensor.max);
  const at = (value) => high > low ? (value - low) / (high - low) * width : 0;
  const make = (name, attributes, parent) => {
    const out = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) out.setAttribute(key, value);
    if (parent) parent.append(out);
    return out;
  };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const step = (tensor.max - tensor.min) / counts.length;
  counts.forEach((count, i) => {
    const tall = Math.log1p(count) / most * (height - 20);
    make("rect", { x: at(tensor.min + i * step), y: height - tall, width: Math.max(1, at(low + step) - .5), height: tall,
                   fill: "#36c" }, svg);
  });
  for (const end of [tensor.encoding_min, tensor.encoding_max]) {
    if (end === undefined) continue;
    make("line", { x1: at(end), x2: at(end), y1: 0, y2: height, stroke: "#c22", "stroke-width": 3 }, svg);
  }
  return svg;
}

function showTensor() {
  if (!view.tensor) return;
  const box = byId("tensor");
  box.replaceChildren();
  element("b", view.tensor, box);
  for (const [name, state] of Object.entries(states)) {
    const tensor = state.tensors.find((candidate) => candidate.tensor === view.tensor);
    if (!tensor) continue;
    if (states.after) element("p", name === "after" ? "After the repair" : "Before", box);
    const list = element("dl", undefined, box);
    const add = (term, text) => { element("dt", term, list); element("dd", text, list); };
    const said = (agreement) => `cosine ${number(agreement.cosine)}, SQNR ${number(agreement.sqnr_db)} dB`;
    add("own", said(tensor.own));
    add("inherited", said(tensor.inherited));
    if (tensor.histogram) add("values", `${number(tensor.min)} to ${number(tensor.max)}`);
    if (tensor.bits) add("encoding", `${tensor.bits} bits, ${number(tensor.encoding_min)} to ${number(tensor.encoding_max)}`);
    if (tensor.float16) add("float16", "read or written in float16");
    if (tensor.peak_channel !== undefined)
      add("channels", `${tensor.peak_channel} reaches ${number(tensor.peak)}; the median one ${number(tensor.median_peak)}`);
    if (tensor.histogram) {
      box.append(histogram(tensor));
      element("p", "Bars: float values, logarithmic counts. Red lines: the encoding's ends.", box);
    }
  }
}

function showAll() { showChoices(); showMap(); showTensor(); }
const first = report.findings[0];
if (first) view.tensor = first.tensor;
showSummary();
showFindings();
showAll();
</script>
</body>
</html>
)html";

}  // namespace

std::string DiagnosisToHtml(const std::string& json) {
  std::string out(kHead);
  // "</script>" in a string would end the element; JSON may write "<" as an escape.
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  out += kTail;
  return out;
}

}  // namespace hexport::diagnose
