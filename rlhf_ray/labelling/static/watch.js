/** Measures how long a question was visible and how long it was hidden. @module */

export class Watch {
  constructor() {
    this._since = performance.now();
    this._view = 0;
    this._hidden = 0;
    this._wasHidden = document.hidden;
    document.addEventListener("visibilitychange", () => this._count());
  }

  /** A new question is on screen. */
  start() {
    this._count();
    this._view = this._hidden = 0;
  }

  /** Milliseconds with the page visible and with it hidden. */
  read() {
    this._count();
    return { view_ms: Math.round(this._view), hidden_ms: Math.round(this._hidden) };
  }

  _count() {
    const now = performance.now();
    if (this._wasHidden) this._hidden += now - this._since;
    else this._view += now - this._since;
    this._since = now;
    this._wasHidden = document.hidden;
  }
}
