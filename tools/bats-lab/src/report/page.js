"use strict";
// The plots are static SVG. This script adds the values at the pointer, zooming by dragging (double click
// resets), and hiding curves by a click on their legend entry.
for (const holder of document.querySelectorAll("[data-plot]")) {
  const plot = DATA[Number(holder.dataset.plot)];
  if (!plot) continue;
  const svg = holder.querySelector("svg");
  const curves = [...svg.querySelectorAll(".curve")];
  const [left, top, right, bottom] = plot.box;
  const all = { x: plot.x, y: plot.y };
  let view = { ...all };
  const hidden = new Set();
  const px = (x) => left + (right - left) * (x - view.x[0]) / (view.x[1] - view.x[0]);
  const py = (y) => bottom - (bottom - top) * y / view.y;
  const make = (name, attributes, text) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const step = (range, parts) => {
    const rough = Math.max(range / parts, 1e-9), size = 10 ** Math.floor(Math.log10(rough));
    return ([1, 2, 5].find((f) => f * size >= rough) || 10) * size;
  };
  const digits = (size) => Math.min(6, Math.max(0, -Math.floor(Math.log10(size))));
  const draw = () => {
    curves.forEach((curve, index) => {
      curve.style.display = hidden.has(index) ? "none" : "";
      const data = plot.curves[index];
      const seen = data.points.filter((p) => p[0] >= view.x[0] && p[0] <= view.x[1]);
      if (curve.tagName === "polyline") {
        let before = view.x[0], text = "";
        for (const [x, y] of seen) {
          const v = Math.min(Math.max(py(y), top), bottom).toFixed(1);
          if (data.stairs) text += px(before).toFixed(1) + "," + v + " ";
          text += px(x).toFixed(1) + "," + v + " ";
          before = x;
        }
        curve.setAttribute("points", text);
      } else {
        curve.replaceChildren(...seen.map(([x, y]) => make("circle", { cx: px(x).toFixed(1), cy: Math.max(py(y), top).toFixed(1), r: 1.6 })));
      }
    });
    const limit = svg.querySelector(".limit");
    if (limit) limit.setAttribute("transform", "translate(0 " + Math.max(py(plot.limit), top) + ")");
    const gx = svg.querySelector("g.x"), gy = svg.querySelector("g.y"), label = gy.lastElementChild;
    gx.replaceChildren(); gy.replaceChildren();
    const sx = step(view.x[1] - view.x[0], 8), sy = step(view.y, 5);
    for (let v = Math.ceil(view.x[0] / sx) * sx; v <= view.x[1] + 1e-9; v += sx)
      gx.append(make("text", { x: px(v), y: bottom + 16, "text-anchor": "middle" }, v.toFixed(digits(sx))));
    for (let v = 0; v <= view.y; v += sy) {
      gy.append(make("line", { x1: left, x2: right, y1: py(v), y2: py(v), stroke: "#ddd" }));
      gy.append(make("text", { x: left - 6, y: py(v), dy: 4, "text-anchor": "end" }, v.toFixed(digits(sy))));
    }
    gy.append(label);
  };
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; holder.append(tip);
  const mark = make("line", { y1: top, y2: bottom, stroke: "#888", visibility: "hidden" });
  const span = make("rect", { y: top, height: bottom - top, fill: "#0072b2", opacity: .12, visibility: "hidden" });
  svg.append(mark, span);
  const where = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    return view.x[0] + (Math.min(Math.max(x, left), right) - left) / (right - left) * (view.x[1] - view.x[0]);
  };
  let from = null;
  svg.addEventListener("pointermove", (event) => {
    const x = where(event), lines = [];
    plot.curves.forEach((curve, index) => {
      if (hidden.has(index) || !curve.points.length) return;
      let low = 0, high = curve.points.length - 1;
      while (low < high) { const middle = (low + high) >> 1; if (curve.points[middle][0] < x) low = middle + 1; else high = middle; }
      lines.push(curve.label + ": " + curve.points[low][1]);
    });
    tip.textContent = x.toFixed(2) + "\n" + lines.join("\n");
    const box = holder.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX - box.left + 14, box.width - 180) + "px";
    tip.style.top = event.clientY - box.top + 14 + "px";
    tip.hidden = false;
    mark.setAttribute("x1", px(x)); mark.setAttribute("x2", px(x)); mark.setAttribute("visibility", "visible");
    if (from !== null) {
      span.setAttribute("x", Math.min(px(from), px(x))); span.setAttribute("width", Math.abs(px(x) - px(from)));
      span.setAttribute("visibility", "visible");
    }
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; mark.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointerdown", (event) => { if (!event.target.closest(".legend")) from = where(event); });
  window.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = where(event);
    span.setAttribute("visibility", "hidden");
    if (Math.abs(px(to) - px(from)) > 12) {
      const x = [Math.min(from, to), Math.max(from, to)];
      const inside = plot.curves.flatMap((c, i) => hidden.has(i) ? [] : c.points.filter((p) => p[0] >= x[0] && p[0] <= x[1]).map((p) => p[1]));
      view = { x, y: (inside.reduce((a, b) => Math.max(a, b), 0) || all.y) * 1.05 };
      draw();
    }
    from = null;
  });
  svg.addEventListener("dblclick", () => { view = { ...all }; draw(); });
  for (const name of svg.querySelectorAll(".legend g")) {
    name.addEventListener("click", () => {
      const index = Number(name.dataset.curve);
      if (!hidden.delete(index)) hidden.add(index);
      name.classList.toggle("off", hidden.has(index));
      draw();
    });
  }
}
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
