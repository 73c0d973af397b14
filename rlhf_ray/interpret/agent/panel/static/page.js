/** The page: the state and its address, keys, playing, tool-tips; starts everything. */
"use strict";

const STEP_MS = 250;
const PAUSE_AT_END_MS = 1000;
const THEMES = ["auto", "light", "dark"];

/**
 * Change the state and draw what depends on it.
 * @param {object} patch
 * @param {{filter?: boolean, rows?: boolean, quiet?: boolean}} what filter: the kept samples may change; rows: draw the filters' rows;
 *   quiet: leave the address as it is (while playing)
 */
async function set(patch, what = {}) {
  Object.assign(state, patch);
  const { core } = panel;
  state.step = Math.max(0, Math.min(state.step, endOf(state.sample) - 1));
  const pair = core.pairs[state.pair];
  state.pairStep = pair ? Math.max(0, Math.min(state.pairStep, pair.steps - 1)) : 0;
  const keys = new Set(Object.keys(patch));
  const needed = state.conditions.filter((one) => one.what === "gradient").map((one) => one.of);
  if (core.quantities.includes(state.quantity)) needed.push(core.quantities.indexOf(state.quantity));
  if (needed.some((one) => !panel.gradients.has(one))) await Promise.all(needed.map(loadGradients));
  if (what.filter) {
    derived.kept = matching(state.conditions, state.at);
    derived.page = 0;
  }
  if (what.rows || keys.has("at")) showConditions();
  if (what.filter) showGallery();
  if (keys.has("sample") && !what.filter) markCurrent();
  if (["sample", "step", "quantity", "opacity"].some((key) => keys.has(key))) showStage();
  if (["sample", "step", "x", "y"].some((key) => keys.has(key))) showScatter();
  if (["sample", "step"].some((key) => keys.has(key))) showTimeline();
  if (["sample", "step", "quantity"].some((key) => keys.has(key))) {
    showBars();
    showPaths();
  }
  if (["pair", "pairStep"].some((key) => keys.has(key))) showPair();
  byId("x").value = state.x;
  byId("y").value = state.y;
  byId("quantity").value = derived.quantities.indexOf(state.quantity);
  byId("opacity").value = state.opacity;
  if (!what.quiet) writeAddress();
}

function fail(error) {
  byId("failed").textContent = error.message;
  byId("failed").hidden = false;
}

/** Everything that the address holds, as it stands in it. */
function addressOf() {
  const words = new URLSearchParams({ s: state.sample, t: state.step, x: state.x, y: state.y, o: state.opacity });
  if (state.quantity) words.set("q", state.quantity);
  if (state.at !== null) words.set("at", state.at);
  if (panel.core.pairs.length) words.set("p", `${state.pair}.${state.pairStep}`);
  if (state.theme !== "auto") words.set("theme", state.theme);
  for (const condition of state.conditions) words.append("f", writeCondition(condition));
  return "#" + words;
}

let writing;
/** Written a moment later, so that dragging does not meet the browsers' limit for changes of the address. */
function writeAddress(now = false) {
  clearTimeout(writing);
  const write = () => history.replaceState(null, "", addressOf());
  if (now) write();
  else writing = setTimeout(write, 150);
}

/** The state of an address; what it does not say or the panel does not have is as at first. */
function readAddress() {
  const { core } = panel;
  const words = new URLSearchParams(location.hash.slice(1));
  const whole = (text, end, otherwise) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : otherwise);
  const columns = axes().length;
  const sample = whole(words.get("s"), core.count, derived.first.sample);
  const [pair, pairStep] = (words.get("p") ?? "").split(".");
  return {
    sample,
    step: whole(words.get("t"), endOf(sample), words.has("s") ? 0 : derived.first.step),
    x: whole(words.get("x"), columns, 0),
    y: whole(words.get("y"), columns, Math.min(1, columns - 1)),
    quantity: derived.quantities.includes(words.get("q")) ? words.get("q") : (derived.quantities[0] ?? ""),
    opacity: whole(words.get("o"), 101, 80),
    at: whole(words.get("at"), core.steps, null),
    pair: whole(pair, core.pairs.length, 0),
    pairStep: whole(pairStep, 1e6, 0),
    theme: THEMES.includes(words.get("theme")) ? words.get("theme") : "auto",
    conditions: words.getAll("f").map(readCondition).filter(Boolean),
  };
}

async function follow() {
  const next = readAddress();
  Object.assign(state, { conditions: next.conditions });
  setTheme(next.theme);
  await set(next, { filter: true, rows: true });
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.toggleAttribute("data-theme", false);
  if (theme !== "auto") document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme[0].toUpperCase() + theme.slice(1);
  byId("theme").setAttribute("aria-label", `Colours: ${theme}`);
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length]);
  redraw();
  writeAddress();
}

/** Draw everything whose colours or sizes are fixed when drawn. */
function redraw() {
  showStage();
  showTimeline();
  showScatter();
  showPair();
}

/** Steps on by itself, with a pause at the end, then from the start. */
class Playing {
  constructor(button, what, ended, onStep) {
    Object.assign(this, { button, what, ended, onStep, timer: 0 });
  }
  toggle() {
    if (this.timer) this.stop();
    else {
      this.button.textContent = "❚❚";
      this.button.setAttribute("aria-label", `Pause${this.what}`);
      this.tick();
    }
  }
  tick() {
    this.timer = setTimeout(async () => {
      await this.onStep();
      if (this.timer) this.tick();
    }, this.ended() ? PAUSE_AT_END_MS : STEP_MS);
  }
  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.button.textContent = "▶";
    this.button.setAttribute("aria-label", `Play${this.what}`);
    writeAddress();
  }
}

/** The sample before or after this one among those kept. */
function neighbour(by) {
  const { kept } = derived;
  if (!kept.length) return say("No sample matches the filters.");
  const here = kept.findIndex(({ sample }) => sample === state.sample);
  const there = here < 0 ? 0 : (here + by + kept.length) % kept.length;
  const page = Math.floor(there / PAGE);
  if (page !== derived.page) {
    derived.page = page;
    showGallery();
  }
  return set({ sample: kept[there].sample, step: state.conditions.length ? kept[there].step : Math.min(state.step, endOf(kept[there].sample) - 1) });
}

let fading;
function say(text) {
  byId("toast").textContent = text;
  byId("toast").hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => (byId("toast").hidden = true), 3000);
}

/** Show a tool-tip near a box (of the window). */
function showTip(text, box) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = document.documentElement.clientWidth - width - 8;
  tip.style.left = `${Math.max(8, Math.min(right, box.left))}px`;
  tip.style.top = `${box.bottom + height + 14 < innerHeight ? box.bottom + 8 : Math.max(8, box.top - height - 8)}px`;
}

let tipped = null;
function hideTip() {
  byId("tip").hidden = true;
  tipped?.removeAttribute("aria-describedby");
  tipped = null;
}

function tipOf(element) {
  hideTip();
  tipped = element;
  element.setAttribute("aria-describedby", "tip");
  showTip(element.dataset.tip, element.getBoundingClientRect());
}

function listenForTips() {
  const of = (event) => (event.target instanceof Element ? event.target.closest("[data-tip]") : null);
  addEventListener("pointerover", (event) => {
    const element = of(event);
    if (event.pointerType === "touch" || element === tipped) return;
    if (element) tipOf(element);
    else if (!event.target.closest("svg, #scatter, #tip")) hideTip();
  });
  addEventListener("focusin", (event) => (of(event)?.matches(":focus-visible, .tip") ? tipOf(of(event)) : hideTip()));
  addEventListener("focusout", hideTip);
  addEventListener("scroll", () => tipped && document.activeElement !== tipped && hideTip(), true);
  for (const button of document.querySelectorAll(".tip")) button.addEventListener("click", () => tipOf(button));
}

function listenForKeys(playing) {
  const actions = {
    " ": () => playing.toggle(),
    ArrowLeft: () => set({ step: state.step - 1 }),
    ArrowRight: () => set({ step: state.step + 1 }),
    Home: () => set({ step: 0 }),
    End: () => set({ step: Infinity }),
    "[": () => neighbour(-1),
    "]": () => neighbour(1),
    "/": () => byId("add").focus(),
    s: () => set({ opacity: state.opacity ? 0 : 80 }),
    q: () => nextQuantity(),
    t: () => nextTheme(),
    "?": () => byId("help").showModal(),
  };
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const target = event.target instanceof Element ? event.target : document.body;
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    if (event.key === " " && target.closest("button, a, input")) return;
    const action = actions[namesOf(event).find((name) => name in actions)];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** Who chooses one axis of a map gets the other as well. */
function otherAxis(x) {
  const column = x - panel.core.components.length;
  return column < 0 ? {} : { y: panel.core.components.length + (column ^ 1) };
}

function nextQuantity() {
  const { quantities } = derived;
  if (quantities.length) set({ quantity: quantities[(quantities.indexOf(state.quantity) + 1) % quantities.length] });
}

function listen() {
  const playing = new Playing(byId("play"), "", () => state.step >= endOf(state.sample) - 1, () =>
    set({ step: state.step >= endOf(state.sample) - 1 ? 0 : state.step + 1 }, { quiet: true }),
  );
  const pairEnd = () => state.pairStep >= panel.core.pairs[state.pair].steps - 1;
  const pairPlaying = new Playing(byId("pair-play"), " A and B", pairEnd, () =>
    set({ pairStep: pairEnd() ? 0 : state.pairStep + 1 }, { quiet: true }),
  );
  const go = {
    play: () => playing.toggle(),
    back: () => set({ step: state.step - 1 }),
    forward: () => set({ step: state.step + 1 }),
    previous: () => neighbour(-1),
    next: () => neighbour(1),
  };
  const pair = {
    play: () => pairPlaying.toggle(),
    back: () => set({ pairStep: state.pairStep - 1 }),
    forward: () => set({ pairStep: state.pairStep + 1 }),
  };
  for (const button of document.querySelectorAll("[data-go]")) button.addEventListener("click", () => go[button.dataset.go]());
  for (const button of document.querySelectorAll("[data-pair]")) button.addEventListener("click", () => pair[button.dataset.pair]());
  const onInput = (id, patch) => byId(id).addEventListener("input", (event) => set(patch(Number(event.target.value))));
  onInput("scrub", (step) => ({ step }));
  onInput("opacity", (opacity) => ({ opacity }));
  onInput("quantity", (number) => ({ quantity: derived.quantities[number] }));
  onInput("y", (y) => ({ y }));
  onInput("x", (x) => ({ x, ...otherAxis(x) }));
  onInput("pair", (one) => ({ pair: one, pairStep: 0 }));
  onInput("pair-scrub", (pairStep) => ({ pairStep }));
  byId("pair-sample").addEventListener("click", () => {
    set({ sample: panel.core.pairs[state.pair].sample });
    byId("stage").focus();
    byId("stage").scrollIntoView();
  });
  byId("page-back").addEventListener("click", () => (derived.page--, showGallery()));
  byId("page-on").addEventListener("click", () => (derived.page++, showGallery()));
  byId("theme").addEventListener("click", nextTheme);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("link").addEventListener("click", async () => {
    writeAddress(true);
    try {
      await navigator.clipboard.writeText(location.href);
      say("The address of this view is copied.");
    } catch {
      say("The address of this view is in the address bar.");
    }
  });
  const nearest = (event) => {
    const box = byId("scatter").getBoundingClientRect();
    const far = derived.places.map(([x, y]) => Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top));
    const step = far.indexOf(Math.min(...far));
    return far[step] < 24 ? step : -1;
  };
  byId("scatter").addEventListener("pointerdown", (event) => nearest(event) >= 0 && set({ step: nearest(event) }));
  byId("scatter").addEventListener("pointermove", (event) => {
    const step = nearest(event);
    if (step >= 0) showTip(`Step ${step}`, { left: event.clientX, top: event.clientY, bottom: event.clientY + 8 });
    else hideTip();
  });
  byId("scatter").addEventListener("pointerleave", hideTip);
  listenForTips();
  listenForKeys(playing);
  addEventListener("hashchange", () => follow().catch(fail));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => innerWidth !== width && ((width = innerWidth), redraw()));
}

function fillPage() {
  const { core } = panel;
  document.title = core.title;
  byId("title").textContent = core.title;
  derived.quantities = [...new Set([...core.quantities, ...core.saliency.map((one) => one.name), ...Object.keys(core.paths)])];
  const first = core.saliency[0]?.rows[0] ?? 0;
  derived.first = { sample: first, step: Math.min(2, endOf(first) - 1) };
  const every = axes().map(({ name, group }) => ({ text: name, group }));
  fillSelect(byId("x"), every);
  fillSelect(byId("y"), every);
  fillSelect(byId("quantity"), derived.quantities.map((text) => ({ text })));
  fillSelect(byId("pair"), core.pairs.map(({ name, simulated }) => ({ text: name, group: simulated ? "In the world model" : "In the real environment" })));
  document.querySelector(".explain").hidden = !derived.quantities.length;
  byId("opacity-label").hidden = !core.saliency.length;
  byId("frame-box").hidden = !core.frames;
  buildConditions();
  const notes = { Samples: String(core.count), ...core.notes, "Made with": `rlhf_ray ${core.version}` };
  if (core.horizon !== null) notes["Valid horizon"] = `${core.horizon} simulated steps; later ones are grey`;
  if (core.frames?.quality) notes.Frames = `compressed (quality ${core.frames.quality})`;
  byId("notes").append(...Object.entries(notes).map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
}

async function start() {
  await loadCore();
  fillPage();
  listen();
  await follow();
  document.body.dataset.state = "ready";
  performance.mark("ready");
}

start().catch(fail);
