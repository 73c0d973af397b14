/**
 * Answers on their way to the server. This browser keeps each answer from the key press until the server acknowledges it as durable,
 * so a network failure, a reload or a full disk on the server loses none; ids make a second send harmless. An answer that the server
 * rejects stays here too, until the server accepts it or the annotator discards it.
 * @module
 */
import { call, Offline, Refused } from "./api.js";
import { keep, keptNames, kept, pause } from "./dom.js";
import { t } from "./text.js";

/**
 * @typedef {object} Given the body of `POST /api/answers`
 * @property {string} event_id
 * @property {string} lease
 * @property {string} answer
 * @property {number} view_ms
 * @property {number} hidden_ms
 * @property {number} loops_left
 * @property {number} loops_right
 * @property {string | null} key
 */
/** @typedef {"saved" | "saving" | "offline"} State */

const RETRY_S = [0.5, 1, 2, 4, 8];

/** One annotator's answers, sent one by one in the order given. */
export class Outbox {
  /**
   * @param {string} name the annotator; each annotator in this browser has a separate outbox
   * @param {(state: State, waiting: number, why: string, box: Outbox) => void} onState
   */
  constructor(name, onState) {
    this._box = `outbox.${name}.`;
    this._onState = onState;
    // One entry per answer, named by time first: two tabs of one annotator neither overwrite nor reorder each other's entries.
    /** @type {Map<string, string>} entry names by event id */
    this._entries = new Map();
    /** @type {Given[]} */
    this._waiting = [];
    /** Answers that the server rejected, with the reason. @type {{given: Given, why: string}[]} */
    this.refused = [];
    for (const entry of this._names()) {
      const { refused, ...given } = kept(entry, {});
      if (!given.event_id) continue;
      this._entries.set(given.event_id, entry);
      if (refused) this.refused.push({ given, why: refused });
      else this._waiting.push(given);
    }
    /** Ids that the server may have seen. @type {Set<string>} */
    this._tried = new Set(this._waiting.map((given) => given.event_id));
    this._running = this._offline = false;
    /** @type {(() => void) | null} */
    this._wake = null;
    addEventListener("online", () => this._wake?.());
    this._say("saved");
    this._run();
  }

  /** @param {Given} given */
  add(given) {
    const entry = `${this._box}${String(Date.now()).padStart(15, "0")}.${given.event_id}`;
    this._entries.set(given.event_id, entry);
    keep(entry, given);
    this._waiting.push(given);
    this._say(this._offline ? "offline" : "saving");
    this._run();
  }

  /** Number of this page's answers that are not saved yet. */
  get waiting() {
    return this._waiting.length;
  }

  /** Leases of unsaved answers, including those of this annotator's other tabs. @returns {string[]} */
  get leases() {
    const everywhere = this._names().map((entry) => kept(entry, {}));
    const waiting = [...this._waiting, ...everywhere.filter((given) => given.lease && !given.refused)];
    return [...new Set(waiting.map((given) => given.lease))];
  }

  /** Send the rejected answers again. */
  retry() {
    for (const { given } of this.refused) this._waiting.push(given), keep(this._entry(given), given);
    this.refused = [];
    this._say("saving");
    this._wake?.();
    this._run();
  }

  /** Delete the rejected answers for good. */
  discard() {
    for (const { given } of this.refused) this._forget(given);
    this.refused = [];
    this._say("saved");
  }

  /**
   * Remove an answer that was never sent.
   * @param {string} id
   * @returns {boolean} whether it was removed
   */
  takeBack(id) {
    const at = this._waiting.findIndex((given) => given.event_id === id);
    if (at < 0 || this._tried.has(id)) return false;
    this._forget(this._waiting[at]);
    this._say("offline");
    return true;
  }

  /** Whether the server has every answer. Waits up to 5 s for those in flight. */
  async empty() {
    const until = Date.now() + 5000;
    while (this._waiting.length && !this._offline && Date.now() < until) await pause(0.01);
    return this._waiting.length === 0;
  }

  /**
   * @param {State} state
   * @param {string} [why]
   */
  _say(state, why = "") {
    this._offline = state === "offline";
    this._onState(state === "saved" && this._waiting.length ? "saving" : state, this._waiting.length, why, this);
  }

  async _run() {
    if (this._running) return;
    this._running = true;
    let failures = 0;
    while (this._waiting.length) {
      const given = this._waiting[0];
      this._tried.add(given.event_id);
      try {
        await call("POST", "api/answers", given);
        failures = 0;
        this._forget(given);
        this._say("saved");
      } catch (error) {
        if (error instanceof Refused && !error.passing && error.status !== 401) {
          // Keep the annotator's work and report the rejection.
          this._waiting = this._waiting.filter((other) => other !== given);
          this.refused.push({ given, why: error.message });
          keep(this._entry(given), { ...given, refused: error.message });
          this._say("saved", t("The server rejected an answer; this browser keeps it: {why}", { why: t(error.message) }));
          continue;
        }
        const busy = error instanceof Refused && error.status === 429;
        if (!busy) this._say(error instanceof Offline ? "offline" : "saving", error instanceof Refused && !failures ? t(error.message) : "");
        await this._sleep(busy ? error.wait : RETRY_S[Math.min(failures++, RETRY_S.length - 1)]);
      }
    }
    this._running = false;
  }

  /** @param {Given} given */
  _forget(given) {
    this._waiting = this._waiting.filter((other) => other !== given);
    this._tried.delete(given.event_id);
    keep(this._entry(given), null);
    this._entries.delete(given.event_id);
  }

  /** Entry names of this annotator, oldest first. Excludes annotators whose name starts with this one. */
  _names() {
    const own = (/** @type {string} */ name) => /^\d{15}\.[0-9a-f]{32}$/.test(name.slice(this._box.length));
    return keptNames(this._box).filter(own).sort();
  }

  /** The entry name of an answer. @param {Given} given */
  _entry(given) {
    return this._entries.get(given.event_id) ?? "";
  }

  /** @param {number} seconds */
  async _sleep(seconds) {
    await Promise.race([pause(seconds), new Promise((wake) => (this._wake = () => wake(undefined)))]);
    this._wake = null;
  }
}
