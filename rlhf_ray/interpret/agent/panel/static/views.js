/** Views: each draws one part of the page from `state`. */
"use strict";

/** What the address holds. `at`: the step of all filters, null for any. `quantity`: a name. */
const state = { sample: 0, step: 0, x: 0, y: 1, quantity: "", opacity: 80, conditions: [], at: null, pair: 0, pairStep: 0, theme: "auto" };

/** What follows from it. */
const derived = { kept: [], page: 0, quantities: [], places: [], scales: [] };

const PAGE = 24;

const rowOf = (sample, step) => sample * panel.core.steps + step;
const endOf = (sample) => panel.core.lengths.of[sample];
/** From which step on nothing can be trusted. */
const greyFrom = (simulated) => (simulated && panel.core.horizon !== null ? panel.core.horizon + 1 : Infinity);

function actionAt(actions, at) {
  const { core } = panel;
  if (core.discrete) return core.actionNames[actions[at]] ?? "–";
  const size = core.actionNames.length;
  return core.actionNames.map((name, one) => `${name} ${told(actions[at * size + one])}`).join(", ");
}

/** Names of the axes of the scatter, and how to read them: components first, then maps. */
function axes() {
  const { core } = panel;
  const k = core.components.length;
  const of = (packed, size, column) => ({ column, size, of: packed.of });
  return [
    ...core.components.map((name, c) => ({ name, group: "Components", base: of(core.base, k, c), own: of(core.loadings, k, c) })),
    ...core.maps.flatMap(({ name, base, of: own }) =>
      [0, 1].map((c) => ({ name: `${name} ${c + 1}`, group: "Maps", base: of(base, 2, c), own: of(own, 2, c) })),
    ),
  ];
}

const at = ({ of, size, column }, row) => of[row * size + column];

function showStage() {
  const { core } = panel;
  const { sample, step } = state;
  const row = rowOf(sample, step);
  const outcome = core.outcomes[core.outcomeOf.of[sample]];
  const level = core.levels.length ? ` · level ${core.levels[sample]}` : "";
  byId("where").textContent = `sample ${sample}${level}${outcome ? ` · ends: ${outcome}` : ""}`;
  byId("scrub").max = endOf(sample) - 1;
  byId("scrub").value = step;
  byId("step").textContent = `step ${step} of ${endOf(sample) - 1}`;
  const words = `${actionAt(core.actions.of, row)}, value ${told(core.values.of[row])}`;
  byId("scrub").setAttribute("aria-valuetext", `step ${step}: ${words}`);
  const beyond = step >= greyFrom(core.simulated);
  byId("beyond").hidden = !beyond;
  byId("frame-box").classList.toggle("grey", beyond);
  if (core.frames) {
    byId("frame").setAttribute("aria-label", `Frame at step ${step}: ${words}`);
    paint(byId("frame"), core.frames, sample, step).catch(fail);
  }
  showSaliency().catch(fail);
}

async function showSaliency() {
  const { core } = panel;
  const { sample, step, quantity } = state;
  const found = await saliencyOf(quantity, sample, step);
  if (sample !== state.sample || step !== state.step || quantity !== state.quantity) return;
  const about = core.saliency.find((one) => one.name === quantity);
  const doubt = (found && state.opacity > 0 && about.doubt) || "";
  byId("frame-box").classList.toggle("crossed", Boolean(doubt));
  byId("no-saliency").hidden = !core.saliency.length || (Boolean(found) && !doubt);
  byId("no-saliency").textContent =
    doubt ? `Don't trust this saliency: ${doubt}`
    : !about ? "No saliency for this quantity."
    : about.rows.includes(sample) ? "No saliency at this step."
    : "No saliency for this sample.";
  if (core.frames) {
    drawSaliency(byId("overlay"), found);
    byId("overlay").style.opacity = state.opacity / 100;
  } else showFeatures(byId("features"), core.features.of, rowOf(sample, step), doubt ? null : found?.map);
}

/** A vector observation as bars, coloured by saliency; each is scaled by its own largest size. */
function showFeatures(box, numbers, row, saliency) {
  const names = panel.core.featureNames;
  box.hidden = false;
  const rows = names.map((name, one) => {
    const x = numbers[row * names.length + one];
    return { name, value: x, colour: saliency ? saliency[one] * (state.opacity > 0) : NaN, tip: `${name}: ${told(x)}` };
  });
  drawBars(box, rows, featureScale());
}

function featureScale() {
  derived.features ??= panel.core.features.of.reduce((most, x) => Math.max(most, Math.abs(x) || 0), 0) || 1;
  return derived.features;
}

function showTimeline() {
  const { core } = panel;
  const { sample, step } = state;
  const length = endOf(sample);
  const rows = Array.from({ length }, (_, one) => rowOf(sample, one));
  const k = core.actionNames.length;
  const chance = (action, row) => (core.probabilities ? core.probabilities.of[row * k + action] : NaN);
  let strength = (action, one) => (core.probabilities ? chance(action, rows[one]) : Number(core.actions.of[rows[one]] === action));
  if (!core.discrete) strength = (action, one) => Math.max(-1, Math.min(1, core.actions.of[rows[one] * k + action]));
  const taken = (one) => (core.discrete ? core.actions.of[rows[one]] : -1);
  const most = core.actionNames.map((_, action) => Math.max(...rows.map((_, one) => Math.max(Math.abs(strength(action, one)), Number(taken(one) === action)))));
  const shown = core.actionNames.map((_, action) => action).filter((action) => !core.discrete || k <= 8 || most[action] > 0.03);
  drawTimeline(byId("timeline"), {
    length, step,
    values: rows.map((row) => core.values.of[row] || 0),
    rewards: rows.map((row) => core.rewards.of[row]),
    names: shown.map((action) => core.actionNames[action]),
    strength: (number, one) => strength(shown[number], one),
    taken: (one) => shown.indexOf(taken(one)),
    greyFrom: greyFrom(core.simulated),
    label: `Value and actions over ${length} steps`,
    onStep: (one) => set({ step: one }),
    tell: (one) => {
      const action = core.actions.of[rows[one]];
      const likely = core.discrete && core.probabilities ? ` (${Math.round(100 * chance(action, rows[one]))} %)` : "";
      const reward = core.rewards.of[rows[one]] ? `, reward ${told(core.rewards.of[rows[one]])}` : "";
      return `Step ${one}: ${actionAt(core.actions.of, rows[one])}${likely}, value ${told(core.values.of[rows[one]])}${reward}`;
    },
  });
}

function showScatter() {
  const { core } = panel;
  const every = axes();
  const [x, y] = [every[state.x], every[state.y]];
  const { sample, step } = state;
  const path = Array.from({ length: endOf(sample) }, (_, one) => [at(x.own, rowOf(sample, one)), at(y.own, rowOf(sample, one))]);
  const key = `${state.x}.${state.y}`;
  if (derived.baseKey !== key) {
    derived.baseKey = key;
    derived.base = Array.from({ length: core.base.shape[0] }, (_, one) => [at(x.base, one), at(y.base, one)]);
  }
  derived.places = drawScatter(byId("scatter"), { base: derived.base, path, step, names: [x.name, y.name], greyFrom: greyFrom(core.simulated) });
  const words = `${x.name} ${told(path[step][0])}, ${y.name} ${told(path[step][1])}`;
  byId("scatter").setAttribute("aria-label", `Step ${step}: ${words}`);
}

function showBars() {
  const { core } = panel;
  const k = core.components.length;
  const row = rowOf(state.sample, state.step);
  const number = core.quantities.indexOf(state.quantity);
  const gradients = panel.gradients.get(number)?.of;
  const scale = core.gradientScales[number];
  if (!derived.scales.length) {
    // One scale for all components, so that bars can be compared: the 99 % quantile of the size of the base points.
    const sizes = Float64Array.from(core.base.of, Math.abs).filter((x) => !Number.isNaN(x)).sort();
    derived.scales = [sizes[Math.floor(0.99 * (sizes.length - 1))] || 1];
  }
  const rows = core.components.map((name, c) => {
    const value = core.loadings.of[row * k + c];
    const gradient = gradients ? gradients[row * k + c] : NaN;
    const effect = Number.isNaN(gradient) ? "" : ` More of it ${gradient < 0 ? "lowers" : "raises"} ${state.quantity} (gradient ${told(gradient)}).`;
    return { name, value, colour: gradient / scale, tip: `${name} is ${told(value)} at this step.${effect} Press to filter by it.`, onPress: () => addCondition({ what: "loading", k: c, of: null, low: null, high: null }) };
  });
  drawBars(byId("bars"), rows, derived.scales[0]);
}

function showPaths() {
  const { core } = panel;
  const paths = core.paths[state.quantity];
  const k = core.pathNames.length;
  const row = rowOf(state.sample, state.step);
  const values = core.pathNames.map((_, one) => (paths ? paths.of[row * k + one] : NaN));
  byId("path-box").hidden = !paths || values.every(Number.isNaN);
  if (byId("path-box").hidden) return;
  const scale = Math.max(...values.map((x) => Math.abs(x) || 0)) || 1;
  const total = values.reduce((sum, x) => sum + (Math.abs(x) || 0), 0) || 1;
  const rows = core.pathNames.flatMap((name, one) => {
    const tip = `Through ${name}: ${told(values[one])}, ${Math.round((100 * Math.abs(values[one])) / total)} % of all sizes together.`;
    return Number.isNaN(values[one]) ? [] : [{ name, value: values[one], colour: values[one] / scale, tip }];
  });
  drawBars(byId("paths"), rows, scale);
}

function showGallery() {
  const { core } = panel;
  const { kept } = derived;
  const when = state.conditions.length ? " match" : "";
  byId("count").textContent = `${kept.length} of ${core.count}${when}`;
  const pages = Math.max(1, Math.ceil(kept.length / PAGE));
  derived.page = Math.min(derived.page, pages - 1);
  const shown = kept.slice(derived.page * PAGE, (derived.page + 1) * PAGE);
  byId("page-of").textContent = `${derived.page + 1} / ${pages}`;
  byId("page-back").disabled = derived.page === 0;
  byId("page-on").disabled = derived.page === pages - 1;
  const gallery = byId("gallery");
  gallery.classList.toggle("words", !core.frames);
  gallery.replaceChildren(
    ...shown.map(({ sample, step }) => {
      const outcome = core.outcomes[core.outcomeOf.of[sample]];
      const button = make("button", { type: "button", class: "thumb", "data-sample": sample, "aria-label": `Sample ${sample}, step ${step}${outcome ? `, ends: ${outcome}` : ""}` });
      button.dataset.tip = `Sample ${sample} at step ${step}: ${actionAt(core.actions.of, rowOf(sample, step))}${outcome ? `; ends: ${outcome}` : ""}.`;
      if (core.frames) {
        const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
        paint(canvas, core.frames, sample, step).catch(fail);
        button.append(canvas);
      }
      button.append(make("span", {}, String(sample)));
      button.addEventListener("click", () => set({ sample, step }));
      return make("li", {}, button);
    }),
  );
  if (!shown.length) gallery.append(make("li", { class: "none quiet" }, "No sample matches. Widen or reset a filter."));
  markCurrent();
}

function markCurrent() {
  for (const button of byId("gallery").querySelectorAll("button"))
    button.setAttribute("aria-current", String(Number(button.dataset.sample) === state.sample));
}

function showPair() {
  const { core } = panel;
  const pair = core.pairs[state.pair];
  byId("pairs").hidden = !pair;
  if (!pair) return;
  const step = state.pairStep;
  const beyond = step >= greyFrom(pair.simulated);
  byId("pair").value = state.pair;
  byId("pair-about").textContent = `${pair.about} ${pair.simulated ? "Imagined by the world model." : "Played in the real environment."}`.trim();
  byId("change").textContent = pair.name;
  pair.sides.forEach((side, number) => {
    const name = "ab"[number];
    const last = Math.min(step, side.length - 1);
    const over = step >= side.length;
    const action = actionAt(core.discrete ? side.actions : side.actions.flat(), last);
    const canvas = byId(`frame-${name}`);
    canvas.hidden = !pair.frames;
    if (pair.frames) paint(canvas, pair.frames, number, last).catch(fail);
    else showFeatures(byId(`features-${name}`), side.features.flat(), last, null);
    canvas.parentElement.hidden = !pair.frames;
    canvas.parentElement.classList.toggle("grey", beyond);
    canvas.nextElementSibling.hidden = !beyond;
    canvas.setAttribute("aria-label", `${name.toUpperCase()} at step ${last}: ${action}`);
    byId(`does-${name}`).textContent = over ? "over" : `${action} · value ${told(side.values[last])}`;
    byId(`outcome-${name}`).textContent = side.outcome ? `ends: ${side.outcome}` : "";
  });
  const [a, b] = pair.sides.map((side) => side.actions.map((_, one) => actionAt(core.discrete ? side.actions : side.actions.flat(), one)));
  const shared = Math.min(a.length, b.length);
  const parted = a.slice(0, shared).findIndex((action, one) => action !== b[one]);
  byId("parts").textContent = parted < 0 ? "Both act the same all the time." : `They first act differently at step ${parted}: ${a[parted]} (A), ${b[parted]} (B).`;
  byId("pair-scrub").max = pair.steps - 1;
  byId("pair-scrub").value = step;
  byId("pair-step").textContent = `step ${step} of ${pair.steps - 1}`;
  byId("pair-sample").hidden = pair.sample === null;
  drawLines(byId("pair-values"), pair.sides, step, pair.steps, greyFrom(pair.simulated));
}
