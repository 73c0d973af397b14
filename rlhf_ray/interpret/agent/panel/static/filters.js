/** Conditions that must hold together at the same step: compared with a second computation in tests/. */
"use strict";

/**
 * A condition: `what` is one of loading, gradient, value, reward (numbers within low and high, null for none) or
 * action, label, outcome (one of `is`). `k` is the number of the component, `of` that of the quantity or clustering.
 */
function testOf(condition) {
  const { core, gradients } = panel;
  const k = core.components.length;
  const { what, is } = condition;
  if (is) {
    const wanted = new Set(is);
    if (what === "outcome") return (i) => wanted.has(core.outcomeOf.of[Math.floor(i / core.steps)]);
    const numbers = what === "action" ? core.actions.of : core.labels[condition.of].of.of;
    return (i) => wanted.has(numbers[i]);
  }
  const low = condition.low ?? -Infinity;
  const high = condition.high ?? Infinity;
  const within = (x) => x >= low && x <= high; // false for NaN
  if (what === "value" || what === "reward") {
    const numbers = core[what + "s"].of;
    return (i) => within(numbers[i]);
  }
  const numbers = what === "loading" ? core.loadings.of : gradients.get(condition.of).of;
  return (i) => within(numbers[i * k + condition.k]);
}

/** The samples that are kept, each with the first step at which all conditions hold. `at`: a step, or null for any. */
function matching(conditions, at) {
  const { steps, count, lengths } = panel.core;
  const tests = conditions.map(testOf);
  const kept = [];
  for (let sample = 0; sample < count; sample++) {
    const end = Math.min(lengths.of[sample], at === null ? Infinity : at + 1);
    for (let step = at ?? 0; step < end; step++) {
      const i = sample * steps + step;
      if (tests.every((holds) => holds(i))) {
        kept.push({ sample, step });
        break;
      }
    }
  }
  return kept;
}

const SHORT = { loading: "l", gradient: "g", value: "v", reward: "r", action: "a", label: "b", outcome: "o" };
const LONG = Object.fromEntries(Object.entries(SHORT).map(([long, short]) => [short, long]));

/** A condition as a word of the address. */
function writeCondition({ what, of, k, low, high, is }) {
  return is ? [SHORT[what], of ?? "", is.join(".")].join("~") : [SHORT[what], of ?? "", k ?? "", low ?? "", high ?? ""].join("~");
}

/** The condition of a word of the address; null if the panel has no such thing. */
function readCondition(word) {
  const { core } = panel;
  const [short, of, ...rest] = word.split("~");
  const what = LONG[short];
  const number = (text) => (text === "" || text === undefined || Number.isNaN(+text) ? null : +text);
  const listed = { action: core.actionNames, outcome: core.outcomes, label: core.labels[of]?.names }[what];
  if (["action", "outcome", "label"].includes(what)) {
    if (!listed || (what === "action" && !core.discrete)) return null;
    const is = (rest[0] ?? "").split(".").filter(Boolean).map(Number).filter((one) => one in listed);
    return { what, of: number(of), is };
  }
  if (!what) return null;
  const condition = { what, of: number(of), k: number(rest[0]), low: number(rest[1]), high: number(rest[2]) };
  if (["loading", "gradient"].includes(what) && !(condition.k in core.components)) return null;
  if (what === "gradient" && !(condition.of in core.quantities)) return null;
  return condition;
}
