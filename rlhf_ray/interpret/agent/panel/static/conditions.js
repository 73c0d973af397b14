/** The filters on the page: a row for each condition, with its controls. */
"use strict";

/** What can be filtered by, as options of the menu: text, group and the new condition. */
function choices() {
  const { core } = panel;
  const number = (what, text) => ({ group: "Numbers", text, condition: { what, of: null, k: null, low: null, high: null } });
  return [
    { group: "Inside", text: "A component", condition: { what: "loading", of: null, k: 0, low: null, high: null } },
    ...(core.quantities.length ? [{ group: "Inside", text: "A gradient", condition: { what: "gradient", of: 0, k: 0, low: null, high: null } }] : []),
    ...core.labels.map(({ name }, of) => ({ group: "Inside", text: name, condition: { what: "label", of, is: [] } })),
    ...(core.discrete ? [{ group: "What it does", text: "Action", condition: { what: "action", of: null, is: [] } }] : []),
    ...(core.outcomes.length ? [{ group: "What it does", text: "How it ends", condition: { what: "outcome", of: null, is: [] } }] : []),
    number("value", "Value"),
    number("reward", "Reward"),
  ];
}

function fillSelect(select, options) {
  const groups = new Map();
  options.forEach(({ text, group = "" }, value) => {
    if (!groups.has(group)) groups.set(group, group ? make("optgroup", { label: group }) : select);
    groups.get(group).append(make("option", { value }, text));
  });
  select.append(...[...groups.values()].filter((one) => one !== select));
}

function buildConditions() {
  const add = byId("add");
  const offered = choices();
  add.append(make("option", { value: "" }, "Add a filter …"));
  fillSelect(add, offered);
  add.addEventListener("change", () => {
    if (add.value !== "") addCondition(structuredClone(offered[add.value].condition));
    add.value = "";
  });
  const when = byId("at");
  when.append(make("option", { value: "" }, "any step"));
  for (let step = 0; step < panel.core.steps; step++) when.append(make("option", { value: step }, `step ${step}`));
  when.addEventListener("change", () => set({ at: when.value === "" ? null : Number(when.value) }, { filter: true }));
  byId("reset").addEventListener("click", () => {
    set({ conditions: [], at: null }, { filter: true, rows: true });
    say("All filters are reset.");
    add.focus();
  });
}

async function addCondition(condition) {
  await set({ conditions: [...state.conditions, condition] }, { filter: true, rows: true });
  byId("conditions").lastElementChild?.querySelector("input, select")?.focus();
}

const allNumbers = ({ what, of, k }) => {
  const { core, gradients } = panel;
  const [numbers, size, column] =
    what === "loading" ? [core.loadings.of, core.components.length, k]
    : what === "gradient" ? [gradients.get(of).of, core.components.length, k]
    : [core[what + "s"].of, 1, 0];
  const found = [];
  for (let sample = 0; sample < core.count; sample++)
    for (let step = 0; step < endOf(sample); step++) {
      const x = numbers[rowOf(sample, step) * size + column];
      if (!Number.isNaN(x)) found.push(x);
    }
  return found;
};

/** A histogram behind the bounds of a condition; what is kept stands out. */
function histogram(condition) {
  const numbers = allNumbers(condition);
  const sorted = Float64Array.from(numbers).sort();
  const [low, high] = [sorted[Math.floor(0.005 * (sorted.length - 1))] ?? 0, sorted[Math.ceil(0.995 * (sorted.length - 1))] ?? 1];
  const bins = new Array(30).fill(0);
  const width = (high - low) / bins.length || 1;
  for (const x of numbers) bins[Math.max(0, Math.min(bins.length - 1, Math.floor((x - low) / width)))]++;
  const most = Math.max(...bins, 1);
  const bars = bins.map((count, bin) => {
    const middle = low + (bin + 0.5) * width;
    const inside = middle >= (condition.low ?? -Infinity) && middle <= (condition.high ?? Infinity);
    const size = 30 * Math.sqrt(count / most);
    return draw("rect", { x: bin * 4, y: 30 - size, width: 3.4, height: size, class: inside ? "in" : "" });
  });
  const box = make("div", { class: "histogram" }, draw("svg", { viewBox: "0 0 120 30", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars));
  box.append(make("span", {}, told(low)), make("span", {}, told(high)));
  return box;
}

/** Draw the rows of conditions anew. */
function showConditions() {
  byId("reset").hidden = !state.conditions.length && state.at === null;
  byId("at").value = state.at ?? "";
  byId("conditions").replaceChildren(...state.conditions.map(conditionRow));
}

function conditionRow(condition, number) {
  const change = (patch, rows = false) =>
    set({ conditions: state.conditions.map((one, other) => (other === number ? { ...one, ...patch } : one)) }, { filter: true, rows });
  const { core } = panel;
  const title = nameOf(condition);
  const away = make("button", { type: "button", class: "away", "aria-label": `Remove the filter ${title}`, "data-tip": "Removes this filter." }, "×");
  away.addEventListener("click", async () => {
    await set({ conditions: state.conditions.filter((_, other) => other !== number) }, { filter: true, rows: true });
    (byId("conditions").querySelectorAll(".away")[Math.max(0, number - 1)] ?? byId("add")).focus();
  });
  const head = make("div", { class: "head" });
  const body = make("div", { class: "body" });
  const choose = (label, names, key) => {
    const select = make("select", { "aria-label": label });
    fillSelect(select, names.map((text) => ({ text })));
    select.value = condition[key];
    select.addEventListener("change", () => change({ [key]: Number(select.value) }, true));
    head.append(select);
  };
  if (condition.what === "gradient") choose("Gradient of", core.quantities.map((name) => `gradient of ${name} by`), "of");
  if (condition.k !== null && condition.k !== undefined) choose("Component", core.components, "k");
  else head.append(make("b", {}, title));
  head.append(away);
  if (condition.is) {
    const names = { action: core.actionNames, outcome: core.outcomes, label: core.labels[condition.of]?.names }[condition.what];
    names.forEach((name, one) => {
      const box = make("input", { type: "checkbox" });
      box.checked = condition.is.includes(one);
      box.addEventListener("change", () => {
        const now = state.conditions[number].is;
        change({ is: box.checked ? [...now, one].sort((a, b) => a - b) : now.filter((other) => other !== one) });
      });
      body.append(make("label", { class: "chip" }, box, name));
    });
  } else {
    body.append(histogram(condition));
    for (const [key, text] of [["low", "at least"], ["high", "at most"]]) {
      const input = make("input", { type: "number", step: "any", "aria-label": `${title} ${text}`, placeholder: text, value: condition[key] ?? "" });
      input.addEventListener("input", async () => {
        await change({ [key]: input.value === "" ? null : input.valueAsNumber });
        body.querySelector(".histogram")?.replaceWith(histogram(state.conditions[number]));
      });
      body.append(input);
    }
  }
  return make("li", { class: "condition" }, head, body);
}

function nameOf({ what, of, k }) {
  const { core } = panel;
  return {
    loading: () => core.components[k],
    gradient: () => `gradient of ${core.quantities[of]} by ${core.components[k]}`,
    value: () => "Value",
    reward: () => "Reward",
    action: () => "Action",
    label: () => core.labels[of].name,
    outcome: () => "How it ends",
  }[what]();
}
