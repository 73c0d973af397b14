/** The answers that the server rejected: how many, why, and the buttons to resend or discard them. @module */
import { byId, make } from "./dom.js";
import { t } from "./text.js";

/** @typedef {import("./outbox.js").Outbox} Outbox */

/** @param {number} count */
const answers = (count) => (count === 1 ? t("1 answer") : t("{count} answers", { count }));

/**
 * Show how many there are and why. Discarding takes two presses.
 * @param {Outbox} outbox
 */
export function showRefused(outbox) {
  const count = outbox.refused.length;
  const badge = byId("refused-count");
  badge.hidden = count === 0;
  badge.textContent = t("{answers} rejected", { answers: answers(count) });
  /** @type {Map<string, number>} */
  const reasons = new Map();
  for (const { why } of outbox.refused) reasons.set(why, (reasons.get(why) ?? 0) + 1);
  byId("refused-why").replaceChildren(...[...reasons].map(([why, many]) => make("li", {}, `${answers(many)}: ${t(why)}`)));
  const dialog = /** @type {HTMLDialogElement} */ (byId("refused"));
  if (!count) dialog.close();
  byId("refused-retry").onclick = () => outbox.retry();
  const discard = byId("refused-discard");
  discard.textContent = t("Discard …");
  discard.onclick = () => {
    discard.textContent = t("Discard {answers} for good", { answers: answers(count) });
    discard.onclick = () => outbox.discard();
  };
}
