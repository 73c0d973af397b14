/** Labelling progress, as numbers and a bar. @module */
import { byId, make } from "./dom.js";
import { LOCALE, t } from "./text.js";

/**
 * Format a number to fit the panel: "9,999", "12.3 k", "12.3 M".
 * @param {unknown} number
 */
export function short(number) {
  const value = Number(number);
  const [unit, name] = value >= 1e6 ? [1e6, " M"] : value >= 1e4 ? [1e3, " k"] : [1, ""];
  // Truncated, not rounded: "1 M of 1 M" must mean the end.
  return (Math.floor((10 * value) / unit) / 10).toLocaleString(LOCALE, { maximumFractionDigits: 1 }) + name;
}

/** @param {number} done @param {number} total */
const part = (done, total) => t("{done} of {total}", { done: short(done), total: short(total) });

/**
 * @param {any} progress the response of `GET /api/progress`
 */
export function showProgress(progress) {
  const { labels = 0, wanted, own = 0, per_minute: perMinute, queue, doubts, env_steps: steps, total_env_steps: total, first_labels: first, reason, ended, over } = progress;
  const bar = /** @type {HTMLProgressElement} */ (byId("bar"));
  bar.hidden = !wanted;
  if (wanted) Object.assign(bar, { max: wanted, value: Math.min(labels, wanted) });
  const begins = byId("begins");
  begins.hidden = first == null || ended;
  if (first != null) begins.textContent = t("Training starts after {first} labels ({labels} so far).", { first: short(first), labels: short(Math.min(labels, first)) });
  /** @type {[string, string][]} */
  const rows = [
    [t("Labels"), wanted ? part(labels, wanted) : short(labels)],
    [t("Yours"), short(own)],
  ];
  if (perMinute != null) rows.push([t("Yours per minute"), short(perMinute)]);
  if (queue != null) rows.push([t("Waiting for you"), short(queue)]);
  if (steps != null) rows.push([t("Agent steps"), total ? part(steps, total) : short(steps)]);
  byId("numbers").replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const again = byId("again");
  again.hidden = !doubts;
  if (doubts) again.textContent = doubts === 1 ? t("1 answer to look at again") : t("{count} answers to look at again", { count: doubts });
  byId("reason").textContent = over || reason || t("Loading the next clips …");
}
