/**
 * Answers on their way to the server. They are kept in this browser from the key press until the server has said that they are
 * durable, so neither a lost network, a reload nor a full disk on the other side loses one; ids make sending twice harmless. One that
 * the server refuses stays here too, until it is taken or the person discards it.
 * @module
 */
import { call, Offline, Refused } from "./api.js";
import { keep, keptNames, kept, pause } from "./dom.js";

/**
 * @typedef {object} Given what `POST /api/answers` takes
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

/** One person's answers, sent one after the other in the order they were given. */
export class Outbox {
  /**
   * @param {string} name whose answers; another person in this browser has another box
   * @param {(state: State, waiting: number, why: string, box: Outbox) => void} onState
   */
  constructor(name, onState) {
    this._box = `outbox.${name}.`;
    this._onState = onState;
    // One entry for each answer, with the time first: two tabs of one person neither overwrite nor reorder each other's.
    /** @type {Map<string, string>} names of the entries by event id */
    this._entries = new Map();
    /** @type {Given[]} */
    this._waiting = [];
    /** Answers that the server did not take, and why. @type {{given: Given, why: string}[]} */
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

  /** How many answers of this page are not saved yet. */
  get waiting() {
    return this._waiting.length;
  }

  /** Leases of the answers that are not saved yet, those of this person's other tabs included. @returns {string[]} */
  get leases() {
    const everywhere = this._names().map((entry) => kept(entry, {}));
    const waiting = [...this._waiting, ...everywhere.filter((given) => given.lease && !given.refused)];
    return [...new Set(waiting.map((given) => given.lease))];
  }

  /** Send what was refused again. */
  retry() {
    for (const { given } of this.refused) this._waiting.push(given), keep(this._entry(given), given);
    this.refused = [];
    this._say("saving");
    this._wake?.();
    this._run();
  }

  /** Delete what was refused, for good. */
  discard() {
    for (const { given } of this.refused) this._forget(given);
    this.refused = [];
    this._say("saved");
  }

  /**
   * Take an answer out that has never been sent.
   * @param {string} id
   * @returns {boolean} whether it was still here
   */
  takeBack(id) {
    const at = this._waiting.findIndex((given) => given.event_id === id);
    if (at < 0 || this._tried.has(id)) return false;
    this._forget(this._waiting[at]);
    this._say("offline");
    return true;
  }

  /** Whether everything is with the server; waits a little for what is on its way. */
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
          // Somebody's work: kept, and said aloud.
          this._waiting = this._waiting.filter((other) => other !== given);
          this.refused.push({ given, why: error.message });
          keep(this._entry(given), { ...given, refused: error.message });
          this._say("saved", `An answer was not taken, and is kept here: ${error.message}`);
          continue;
        }
        const busy = error instanceof Refused && error.status === 429;
        if (!busy) this._say(error instanceof Offline ? "offline" : "saving", error instanceof Refused && !failures ? error.message : "");
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

  /** Where this person's answers are kept, the oldest first: not those of somebody whose name begins like theirs. */
  _names() {
    const own = (/** @type {string} */ name) => /^\d{15}\.[0-9a-f]{32}$/.test(name.slice(this._box.length));
    return keptNames(this._box).filter(own).sort();
  }

  /** Where an answer is kept. @param {Given} given */
  _entry(given) {
    return this._entries.get(given.event_id) ?? "";
  }

  /** @param {number} seconds */
  async _sleep(seconds) {
    await Promise.race([pause(seconds), new Promise((wake) => (this._wake = () => wake(undefined)))]);
    this._wake = null;
  }
}
