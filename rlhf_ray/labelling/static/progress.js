/** How far labelling is, as numbers and a bar. @module */
import { byId, make } from "./dom.js";

/** @param {unknown} number */
const grouped = (number) => Number(number).toLocaleString("en", { maximumFractionDigits: 1 });

/**
 * @param {any} progress what `GET /api/progress` gives
 */
export function showProgress(progress) {
  const { labels = 0, wanted, own = 0, per_minute: perMinute, queue, env_steps: steps, total_env_steps: total, reason, finished } = progress;
  const bar = /** @type {HTMLProgressElement} */ (byId("bar"));
  bar.hidden = !wanted;
  if (wanted) Object.assign(bar, { max: wanted, value: Math.min(labels, wanted) });
  /** @type {[string, string][]} */
  const rows = [
    ["Labels", wanted ? `${grouped(labels)} of ${grouped(wanted)}` : grouped(labels)],
    ["Yours", grouped(own)],
  ];
  if (perMinute != null) rows.push(["Yours per minute", grouped(perMinute)]);
  if (queue != null) rows.push(["Waiting for you", grouped(queue)]);
  if (steps != null) rows.push(["Agent’s steps", total ? `${grouped(steps)} of ${grouped(total)}` : grouped(steps)]);
  byId("numbers").replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  byId("reason").textContent = reason || (finished ? "Labelling is finished. Thank you." : "Fetching the next clips …");
}
