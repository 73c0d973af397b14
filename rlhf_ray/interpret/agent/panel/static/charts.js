/** Charts: bars, the timeline, the scatter, two lines. They draw what they are given and keep no state. */
"use strict";

const byId = (id) => document.getElementById(id);

/** A new element. Strings become text; nothing is parsed as HTML. */
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

function draw(tag, attributes, ...content) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

/** A number for people: three digits, a real minus. */
function told(x) {
  if (x === null || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  const text = size >= 1000 || (size < 0.001 && size > 0) ? x.toExponential(1) : x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  return text.replace("-", "−");
}

/** A style's colour, as the theme has it. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The diverging colour of x from -1 (lowers) to 1 (raises), saturating: as a mixture of the theme's colours. */
function diverging(x) {
  if (Number.isNaN(x)) return "var(--bar)";
  const share = Math.round(100 * Math.sqrt(Math.min(1, Math.abs(x))));
  return `color-mix(in oklab, var(${x < 0 ? "--lowers" : "--raises"}) ${share}%, var(--bar))`;
}

/**
 * Rows of a name, a bar from the middle, and a number. Rows are kept from call to call, so that they move smoothly.
 * @param rows {name, value, colour (-1 to 1, or NaN), tip, onPress}
 * @param scale value at the end of a bar
 */
function drawBars(box, rows, scale) {
  if (box.dataset.names !== rows.map((row) => row.name).join("\n")) {
    box.dataset.names = rows.map((row) => row.name).join("\n");
    box.replaceChildren(
      ...rows.map((row) => {
        const name = row.onPress ? make("button", { type: "button", class: "name" }, row.name) : make("span", { class: "name" }, row.name);
        if (row.onPress) name.addEventListener("click", row.onPress);
        return make("div", { class: "bar" }, name, make("span", { class: "track", "aria-hidden": "true" }, make("i")), make("output"));
      }),
    );
  }
  rows.forEach((row, number) => {
    const [name, track, output] = box.children[number].children;
    const share = Math.max(-1, Math.min(1, row.value / scale)) || 0;
    const bar = track.firstChild;
    bar.style.left = `${50 + Math.min(0, share) * 50}%`;
    bar.style.width = `${Math.abs(share) * 50}%`;
    bar.style.background = diverging(row.colour ?? NaN);
    track.classList.toggle("out", Math.abs(row.value) > scale);
    output.textContent = told(row.value);
    if (row.onPress) name.dataset.tip = row.tip;
    else box.children[number].dataset.tip = row.tip;
  });
}

const GUTTER = 92;

/**
 * The value as a line, and below it a row for each action whose cells are darker where it is likelier.
 * @param about {length, step, values, rewards, names, strength(action, step) -1 to 1, taken(step), greyFrom, onStep, tell(step)}
 */
function drawTimeline(box, about) {
  const width = Math.max(260, box.clientWidth);
  const [top, line, row] = [14, 74, 17];
  const cell = Math.min(64, (width - GUTTER - 4) / about.length);
  const height = top + line + 8 + about.names.length * row + 18;
  const [low, high] = [Math.min(...about.values), Math.max(...about.values)];
  const x = (step) => GUTTER + (step + 0.5) * cell;
  const y = (value) => top + line - ((value - low) / (high - low || 1)) * line;
  const parts = [
    draw("rect", { x: GUTTER + about.step * cell, y: 4, width: cell, height: height - 20, class: "now", rx: 4 }),
    draw("text", { x: GUTTER - 8, y: y(high) + 4, class: "end" }, told(high)),
    draw("text", { x: 0, y: top + line / 2 + 4, class: "strong" }, "value"),
    ...(high > low ? [draw("text", { x: GUTTER - 8, y: y(low) + 4, class: "end" }, told(low))] : []),
    draw("polyline", { points: about.values.map((value, step) => `${x(step)},${y(value)}`).join(" "), class: "line" }),
    ...about.values.map((value, step) => draw("circle", { cx: x(step), cy: y(value), r: step === about.step ? 5 : 2.5, class: "dot" })),
    ...about.rewards.flatMap((reward, step) =>
      reward ? [draw("text", { x: x(step), y: top + line + 6, class: "reward" }, reward > 0 ? "★" : "✕")] : [],
    ),
  ];
  about.names.forEach((name, action) => {
    const at = top + line + 12 + action * row;
    parts.push(draw("text", { x: 0, y: at + 12 }, name.length > 13 ? name.slice(0, 12) + "…" : name));
    for (let step = 0; step < about.length; step++) {
      const strength = about.strength(action, step);
      const side = strength < 0 ? "--lowers" : "--raises";
      const fill = `color-mix(in oklab, var(${side}) ${Math.round(100 * Math.abs(strength))}%, var(--bar-soft))`;
      const taken = about.taken(step) === action;
      parts.push(draw("rect", {
        x: GUTTER + step * cell + 1.5, y: at + 1.5, width: Math.max(1, cell - 3), height: row - 3, rx: 2, style: `fill:${fill}`, class: taken ? "taken" : "",
      }));
    }
  });
  for (let step = 0; step < about.length; step += Math.ceil(24 / cell))
    parts.push(draw("text", { x: x(step), y: height - 3, class: "tick" }, String(step)));
  if (about.greyFrom < about.length)
    parts.push(draw("rect", { x: GUTTER + about.greyFrom * cell, y: 0, width: (about.length - about.greyFrom) * cell, height, class: "grey" }));
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about.label }, ...parts);
  const stepOf = (event) => Math.floor((event.clientX - svg.getBoundingClientRect().left - GUTTER) / cell);
  svg.addEventListener("pointerdown", (event) => stepOf(event) >= 0 && stepOf(event) < about.length && about.onStep(stepOf(event)));
  svg.addEventListener("pointermove", (event) => {
    const step = stepOf(event);
    if (step >= 0 && step < about.length) showTip(about.tell(step), { left: event.clientX, top: event.clientY, bottom: event.clientY + 12 });
    else hideTip();
  });
  svg.addEventListener("pointerleave", hideTip);
  box.replaceChildren(svg);
}

/** Two lines, A and B, with the current step. */
function drawLines(box, sides, step, steps, greyFrom) {
  const width = Math.max(240, box.clientWidth);
  const [height, left] = [96, 44];
  const every = sides.flatMap((side) => side.values).filter((value) => value !== null);
  const [low, high] = [Math.min(...every), Math.max(...every)];
  const x = (at) => left + 6 + (at / Math.max(1, steps - 1)) * (width - left - 14);
  const y = (value) => 78 - ((value - low) / (high - low || 1)) * 66;
  const parts = [
    draw("line", { x1: x(step), x2: x(step), y1: 4, y2: 88, class: "mark" }),
    draw("text", { x: left - 4, y: 16, class: "end" }, told(high)),
    draw("text", { x: left - 4, y: 82, class: "end" }, told(low)),
    ...sides.map((side, number) =>
      draw("polyline", { points: side.values.map((value, at) => (value === null ? "" : `${x(at)},${y(value)}`)).join(" "), class: "ab" }),
    ),
  ];
  parts.slice(-2).forEach((one, number) => one.classList.add("ab"[number]));
  if (greyFrom < steps) parts.push(draw("rect", { x: x(greyFrom - 0.5), y: 0, width: Math.max(0, width - x(greyFrom - 0.5)), height, class: "grey" }));
  box.replaceChildren(draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Expected return of A and B over time" }, ...parts));
}

/**
 * Grey base points, the sample's path and its current step.
 * @param about {base [x, y][], path [x, y][], step, names [x, y], greyFrom}; each axis' range comes from the base points
 */
function drawScatter(canvas, about) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const [margin, foot] = [12, 22];
  const ranges = [0, 1].map((axis) => {
    const sorted = Float64Array.from(about.base, (point) => point[axis]).sort();
    const low = sorted[Math.floor(0.005 * (sorted.length - 1))] ?? 0;
    const high = sorted[Math.ceil(0.995 * (sorted.length - 1))] ?? 1;
    const room = 0.06 * (high - low || 1);
    return [low - room, high + room];
  });
  const clamp = (x) => Math.max(0, Math.min(1, x));
  const share = (point, axis) => (point[axis] - ranges[axis][0]) / (ranges[axis][1] - ranges[axis][0]);
  const place = (point) => [
    margin + clamp(share(point, 0)) * (width - 2 * margin),
    margin + (1 - clamp(share(point, 1))) * (height - margin - foot),
  ];
  const outside = (point) => [0, 1].some((axis) => share(point, axis) < 0 || share(point, axis) > 1);
  pen.fillStyle = colour("--points");
  for (const point of about.base) {
    const [x, y] = place(point);
    pen.fillRect(x - 1.25, y - 1.25, 2.5, 2.5);
  }
  pen.strokeStyle = colour("--grid");
  pen.lineWidth = 1;
  for (const axis of [0, 1]) {
    const at = -ranges[axis][0] / (ranges[axis][1] - ranges[axis][0]);
    if (at <= 0 || at >= 1) continue;
    pen.beginPath();
    const x = margin + at * (width - 2 * margin);
    const y = margin + (1 - at) * (height - margin - foot);
    if (axis) pen.moveTo(margin, y), pen.lineTo(width - margin, y);
    else pen.moveTo(x, margin), pen.lineTo(x, height - foot);
    pen.stroke();
  }
  const places = about.path.map(place);
  pen.strokeStyle = pen.fillStyle = colour("--true");
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.beginPath();
  places.forEach(([x, y], step) => (step ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
  places.forEach(([x, y], step) => {
    const now = step === about.step;
    pen.beginPath();
    pen.arc(x, y, now ? 7 : 3, 0, 7);
    pen.fillStyle = outside(about.path[step]) ? colour("--card") : step >= about.greyFrom ? colour("--muted") : colour(now ? "--learned" : "--true");
    pen.strokeStyle = colour(now ? "--learned" : "--true");
    pen.lineWidth = now ? 2.5 : 1.5;
    pen.fill();
    pen.stroke();
  });
  pen.fillStyle = colour("--muted");
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.fillText(`${about.names[0]} →`, width - margin, height - 6);
  pen.textAlign = "left";
  pen.fillText(`↑ ${about.names[1]}`, margin, height - 6);
  return places;
}

/** Draw a saliency map on the overlay: red raises, blue lowers, clear where about 0. */
function drawSaliency(canvas, found) {
  canvas.hidden = !found;
  if (!found) return;
  const { map, height, width } = found;
  const sides = [colour("--lowers"), colour("--raises")].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  canvas.width = width;
  canvas.height = height;
  const pixels = new ImageData(width, height);
  map.forEach((x, i) => {
    const [red, green, blue] = sides[x > 0 ? 1 : 0];
    pixels.data.set([red, green, blue, Math.round(255 * Math.min(1, Math.abs(x || 0)))], 4 * i);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}
