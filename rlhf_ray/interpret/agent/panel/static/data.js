/** The panel's data: scripts that call `panelTakes`, loaded when needed, because a page on file:// may not fetch files. */
"use strict";

/** Contents by name, as promises, with what resolves and rejects them. */
const contents = new Map();

/** Called by each file of data/. */
function panelTakes(name, content) {
  contents.get(name)?.resolve(content);
}

/** The content of data/NAME.js. */
function load(name) {
  let one = contents.get(name);
  if (!one) {
    one = {};
    one.promise = new Promise((resolve, reject) => Object.assign(one, { resolve, reject }));
    contents.set(name, one);
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onerror = () => one.reject(new Error(`data/${name}.js is missing: export the panel again.`));
    document.head.append(script);
  }
  return one.promise;
}

/** All 65,536 numbers of float16. */
const HALVES = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    table[bits] =
      exponent === 31 ? (fraction ? NaN : sign * Infinity)
      : exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
      : sign * 2 ** -14 * (fraction / 1024);
  }
  return table;
})();

/** Numbers by a table of their levels; a plain loop, because a million calls would take a second. */
function byTable(levels, table) {
  const numbers = new table.constructor(levels.length);
  for (let i = 0; i < levels.length; i++) numbers[i] = table[levels[i]];
  return numbers;
}

const LEVELS = Float64Array.from({ length: 256 }, (_, byte) => (byte < 128 ? byte : byte - 256));

/** How to read each kind of packed numbers (packing.py): bytes and scale to numbers. */
const KINDS = {
  half: (bytes) => byTable(new Uint16Array(bytes.buffer), HALVES),
  small: (bytes) => new Int16Array(bytes.buffer),
  share: (bytes) => byTable(bytes, Float32Array.from(LEVELS, (_, byte) => byte / 255)),
  curved: (bytes, scale) =>
    byTable(bytes, LEVELS.map((level) => (level === -128 ? NaN : ((Math.sign(level) * level * level) / 16129) * scale))),
  linear: (bytes) => byTable(bytes, Float32Array.from(LEVELS, (level) => (level === -128 ? NaN : level / 127))),
};

/** Numbers and their shape. */
async function unpack(packed) {
  if (!packed) return null;
  const small = Uint8Array.fromBase64?.(packed.data) ?? Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([small]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return { of: KINDS[packed.kind](bytes, packed.scale), shape: packed.shape };
}

/** Replace each packed array of `content`, to any depth, by its numbers. */
async function unpackAll(content) {
  if (content === null || typeof content !== "object") return content;
  if ("kind" in content && "data" in content) return unpack(content);
  if (Array.isArray(content)) return typeof content[0] === "object" ? Promise.all(content.map(unpackAll)) : content;
  const entries = await Promise.all(Object.entries(content).map(async ([name, value]) => [name, await unpackAll(value)]));
  return Object.fromEntries(entries);
}

/** Everything loaded so far: the core, and gradients by number of their quantity. */
const panel = { core: null, gradients: new Map(), saliency: new Map() };

async function loadCore() {
  panel.core = await unpackAll(await load("core"));
}

async function loadGradients(number) {
  if (!panel.gradients.has(number)) {
    const content = await unpackAll(await load(`gradients_${number}`));
    panel.gradients.set(number, content.gradients);
  }
}

/** The saliency of a quantity at a step of a sample, from -1 to 1 per pixel; null if it was not computed. */
async function saliencyOf(name, sample, step) {
  const number = panel.core.saliency.findIndex((one) => one.name === name);
  const about = panel.core.saliency[number];
  const row = about ? about.rows.indexOf(sample) : -1;
  if (row < 0) return null;
  const block = `saliency_${number}_${Math.floor(row / about.block)}`;
  if (!panel.saliency.has(block)) panel.saliency.set(block, (await unpackAll(await load(block))).maps);
  const maps = panel.saliency.get(block);
  const size = about.height * about.width;
  const start = ((row % about.block) * panel.core.steps + step) * size;
  const map = maps.of.subarray(start, start + size);
  return map.some((one) => !Number.isNaN(one)) ? { map, height: about.height, width: about.width } : null;
}

/** Images of sheets, by address; the oldest are dropped. */
const images = new Map();

function sheet(address) {
  let image = images.get(address);
  if (!image) {
    image = new Promise((resolve, reject) => {
      const loading = new Image();
      loading.onload = () => resolve(loading);
      loading.onerror = () => reject(new Error(`${address} is missing: export the panel again.`));
      loading.src = address;
    });
  } else images.delete(address);
  images.set(address, image);
  if (images.size > 48) images.delete(images.keys().next().value);
  return image;
}

/** Draw tile `step` of `group` on a canvas; the last call for a canvas wins. */
async function paint(canvas, plan, group, step) {
  const wanted = `${plan.prefix}${group}.${step}`;
  canvas.dataset.wanted = wanted;
  if (canvas.dataset.tile === wanted) return;
  const image = await sheet(`frames/${plan.prefix}${Math.floor(group / plan.together)}.webp`);
  if (canvas.dataset.wanted !== wanted) return;
  const tile = (group % plan.together) * plan.steps + step;
  const [column, row] = [tile % plan.columns, Math.floor(tile / plan.columns)];
  canvas.width = plan.width;
  canvas.height = plan.height;
  canvas.getContext("2d").drawImage(
    image, column * plan.width, row * plan.height, plan.width, plan.height, 0, 0, plan.width, plan.height,
  );
  canvas.dataset.tile = wanted;
}
