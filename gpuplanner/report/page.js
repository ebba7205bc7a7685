"use strict";
// Lay a Vega-Lite specification out for a width; gpuplanner.report.chart_rendering.fitted does the same in Python.
function fitted(spec, width) {
  const facts = spec.usermeta;
  const names = Math.min(facts.names, Math.floor(width * NAMES_SHARE));
  const fit = structuredClone(spec);
  fit.config.axisYDiscrete = { labelLimit: names };
  fit.config.legend.columns = Math.max(1, Math.floor((width - names) / facts.legend));
  fit.config.legend.labelLimit = Math.max(60, Math.min(260, width - names - 30));
  if (!facts.panels) {
    fit.width = width;
    fit.autosize = { type: "fit-x", contains: "padding" };
    return fit;
  }
  fit.columns = Math.max(1, Math.min(facts.panels.columns, Math.floor(width / facts.panels.minimum)));
  const panel = Math.max(80, Math.floor(width / fit.columns) - names - facts.panels.margin);
  (fit.concat || [fit.spec]).forEach((part) => { part.width = panel; });
  return fit;
}

const drawn = new Map();

// Draw one chart, unless it stands there already in this width.
async function draw(box) {
  const width = Math.floor(box.clientWidth);
  const before = drawn.get(box);
  if (!width || (before && before.width === width)) return;
  const now = { width };
  drawn.set(box, now);
  const spec = JSON.parse(box.querySelector("script").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true };
  const result = await vegaEmbed(box.querySelector("div"), fitted(spec, width), options);
  if (before && before.result) before.result.finalize();
  // The box says in words what is drawn; the parts of the drawing have no names.
  box.querySelector("svg").setAttribute("aria-hidden", "true");
  now.result = result;
  box.dataset.width = width;
}

let pending;
const observer = new ResizeObserver((entries) => {
  clearTimeout(pending);
  pending = setTimeout(() => document.querySelectorAll(".chart").forEach(draw), 120);
});
document.querySelectorAll(".chart").forEach((box) => { draw(box); observer.observe(box); });

// A link to a folded section opens it.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const folded = target && (target.querySelector(":scope > details") || target);
  for (let part = folded; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", unfold);
unfold();
