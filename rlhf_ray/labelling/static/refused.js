/** The answers that the server did not take: how many, why, and what their author can do with them. @module */
import { byId, make } from "./dom.js";

/** @typedef {import("./outbox.js").Outbox} Outbox */

/** @param {number} count */
const answers = (count) => (count === 1 ? "1 answer" : `${count} answers`);

/**
 * Show how many there are and why, and let nobody discard them with one press.
 * @param {Outbox} outbox
 */
export function showRefused(outbox) {
  const count = outbox.refused.length;
  const badge = byId("refused-count");
  badge.hidden = count === 0;
  badge.textContent = `${answers(count)} not taken`;
  /** @type {Map<string, number>} */
  const reasons = new Map();
  for (const { why } of outbox.refused) reasons.set(why, (reasons.get(why) ?? 0) + 1);
  byId("refused-why").replaceChildren(...[...reasons].map(([why, many]) => make("li", {}, `${answers(many)}: ${why}`)));
  const dialog = /** @type {HTMLDialogElement} */ (byId("refused"));
  if (!count) dialog.close();
  byId("refused-retry").onclick = () => outbox.retry();
  const discard = byId("refused-discard");
  discard.textContent = "Discard …";
  discard.onclick = () => {
    discard.textContent = `Discard ${answers(count)} for good`;
    discard.onclick = () => outbox.discard();
  };
}
