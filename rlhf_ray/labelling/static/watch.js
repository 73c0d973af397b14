/** Measures how long a question was visible and how long it was hidden, and so when it takes answers. @module */
import { byId } from "./dom.js";

/**
 * Ignore presses within this time of a new pair: they were meant for the previous pair or are accidental. Seeing a new pair and
 * choosing takes people more than 0.3 s.
 */
export const TOO_SOON_MS = 250;

export class Watch {
  constructor() {
    this._since = performance.now();
    this._view = 0;
    this._hidden = 0;
    this._asking = this._seen = false;
    this._wasHidden = document.hidden;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._timer = undefined;
    document.addEventListener("visibilitychange", () => this.takes());
  }

  /**
   * A new question is on screen, or none.
   * @param {boolean} asking whether there is one
   * @param {boolean} [seen] whether it was shown before, so that it may be answered at once
   */
  start(asking, seen = false) {
    this._count();
    this._view = this._hidden = 0;
    this._asking = asking;
    this._seen = seen;
    this.takes();
  }

  /** Milliseconds with the page visible and with it hidden. */
  read() {
    this._count();
    return { view_ms: Math.round(this._view), hidden_ms: Math.round(this._hidden) };
  }

  /** Whether the question takes answers by now. The pair's `data-takes` says so too, and never earlier. */
  takes() {
    this._count();
    const takes = this._asking && (this._seen || this._view >= TOO_SOON_MS);
    byId("pair").dataset.takes = String(takes);
    clearTimeout(this._timer);
    if (this._asking && !takes && !document.hidden) this._timer = setTimeout(() => this.takes(), TOO_SOON_MS - this._view);
    return takes;
  }

  _count() {
    const now = performance.now();
    if (this._wasHidden) this._hidden += now - this._since;
    else this._view += now - this._since;
    this._since = now;
    this._wasHidden = document.hidden;
  }
}
