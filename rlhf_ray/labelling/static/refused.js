/** The answers that the server rejected: how many, why, and the buttons to resend or discard them. @module */
import { byId, make } from "./dom.js";

/** @typedef {import("./outbox.js").Outbox} Outbox */

/** @param {number} count */
const answers = (count) => (count === 1 ? "1 answer" : `${count} answers`);

/**
 * Show how many there are and why. Discarding takes two presses.
 * @param {Outbox} outbox
 */
export function showRefused(outbox) {
  const count = outbox.refused.length;
  const badge = byId("refused-count");
  badge.hidden = count === 0;
  badge.textContent = `${answers(count)} rejected`;
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
