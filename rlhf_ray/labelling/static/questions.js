/**
 * Questions from the server. Prefetches a few with decoded films, so that the next pair appears on a key press. Renews leases while
 * the page is visible and releases them when the annotator leaves.
 * @module
 */
import { call, Offline, Refused, sheet } from "./api.js";
import { newId, pause } from "./dom.js";
import { t } from "./text.js";

/** @typedef {import("./player.js").FilmInfo} FilmInfo */
/** @typedef {import("./player.js").Film} Film */
/** @typedef {{lease: string, left: FilmInfo, right: FilmInfo, fps: number, expires_in: number}} Showing */
/** @typedef {{showing: Showing, films: Film[], until: number}} Question a showing with its films; `until` in ms since the epoch */

const AHEAD = 3;
/** How often the page asks for more questions and reports that it is open. */
const POLL_MS = 2000;
/** With this many unsaved answers, the page stops asking for more pairs. */
const MOST_WAITING = 24;
/** Maximum number of leases in one request. */
const MOST_HELD = 36;

/** Id of this page among the annotator's open pages. If a browser crashes, the next page that opens takes over its leases. */
export const PAGE = newId();

/**
 * A showing with its decoded films.
 * @param {Showing} showing
 * @returns {Promise<Question>}
 */
export async function load(showing) {
  const infos = [showing.left, showing.right];
  const sheets = await Promise.all(infos.map((info) => sheet(info.id)));
  return { showing, films: infos.map((info, at) => ({ info, sheet: sheets[at] })), until: Date.now() + showing.expires_in * 1000 };
}

/** Free the images of a question. @param {Question} question */
export function close(question) {
  for (const film of question.films) film.sheet.close();
}

/** The questions of this page: the current one and those prefetched. */
export class Questions {
  /**
   * @param {() => void} onReady called when a question is available again
   * @param {(progress: any) => void} onProgress
   * @param {(text: string) => void} onTrouble called with the reason when no question can be loaded
   * @param {(text: string, ended: boolean) => void} onOver called with what to show once labelling is over, empty if more questions
   *   may come; and whether the server is about to close
   * @param {() => import("./outbox.js").Outbox | undefined} outbox returns the unsaved answers: their pairs stay leased like those on
   *   screen
   */
  constructor(onReady, onProgress, onTrouble, onOver, outbox) {
    this._onReady = onReady;
    this._onProgress = onProgress;
    this._onTrouble = onTrouble;
    this._onOver = onOver;
    /** What to show once labelling is over, also when the server has gone; empty before. */
    this._over = "";
    this._ended = false;
    this._outbox = outbox;
    /** @type {Question | null} */
    this.current = null;
    /** @type {Question[]} */
    this._ahead = [];
    this._fetching = false;
    this._running = false;
    document.addEventListener("visibilitychange", () => this._visible());
    addEventListener("pagehide", () => this.release(true));
    addEventListener("pageshow", (event) => event.persisted && this.fill());
    setInterval(() => {
      this.fill();
      this._renew();
    }, POLL_MS);
  }

  start() {
    this._running = true;
    this.fill();
  }

  stop() {
    this._running = false;
    this.release(true);
  }

  /** Make the next question the current one; null if none is ready. */
  advance() {
    this.current = this._ahead.shift() ?? null;
    this.fill();
    return this.current;
  }

  /**
   * Show this question now, and the current one after it.
   * @param {Question} question
   */
  putBefore(question) {
    if (this.current) this._ahead.unshift(this.current);
    this.current = question;
  }

  /** Fetch until enough questions are prefetched. */
  async fill() {
    if (this._fetching || !this._running || document.hidden || this._ahead.length >= AHEAD) return;
    const waiting = this._outbox()?.waiting ?? 0;
    if (waiting >= MOST_WAITING) {
      this._onTrouble(t("Your last {count} answers are not saved yet. The next pair appears once they are.", { count: waiting }));
      return;
    }
    this._fetching = true;
    try {
      const wish = { count: AHEAD - this._ahead.length + (this.current ? 0 : 1), holding: this._held(), page: PAGE };
      const { questions, progress } = await call("POST", "api/questions", wish);
      this._onProgress(progress);
      this._hear(progress);
      // In order, each as soon as it is loaded: the first does not wait for the films of the third.
      const loading = questions.map((/** @type {Showing} */ showing) => this._load(showing));
      for (const question of loading) {
        const loaded = await question;
        if (!loaded) continue;
        if (!this._running) this._giveBack([loaded.showing.lease]);
        else this._ahead.push(loaded);
        if (this._running && !this.current) this._onReady();
      }
    } catch (error) {
      this._onTrouble(error instanceof Refused ? t(error.message) : this._over || t("Can’t reach the server; retrying."));
    } finally {
      this._fetching = false;
    }
  }

  /**
   * Release all leases; the request outlives the page.
   * @param {boolean} [closing] whether this page closes
   */
  release(closing = false) {
    const leases = this._leases();
    for (const question of this._ahead) close(question);
    this._ahead = [];
    this.current = null;
    this._giveBack(leases, closing);
  }

  /**
   * Note whether labelling is over. Once it has ended, drop all questions: nobody waits for their answers.
   * @param {{ended: boolean, over: string | null}} heard
   */
  _hear({ ended, over }) {
    if ((over ?? "") !== this._over || ended !== this._ended) this._onOver((this._over = over ?? ""), (this._ended = ended));
    if (!ended || !this._leases().length) return;
    this.release();
    this._onReady();
  }

  /** @returns {string[]} */
  _leases() {
    return [this.current, ...this._ahead].flatMap((question) => (question ? [question.showing.lease] : []));
  }

  /** @returns {string[]} */
  _held() {
    return [...this._leases(), ...(this._outbox()?.leases ?? [])].slice(0, MOST_HELD);
  }

  /**
   * @param {string[]} leases
   * @param {boolean} [closing]
   */
  _giveBack(leases, closing = false) {
    if (!leases.length && !closing) return;
    call("POST", "api/leases/release", { leases, page: closing ? PAGE : null }, { keepalive: true }).catch(() => {});
  }

  /**
   * The question with its films; retries while the server is unreachable. Null if a film can't be shown.
   * @param {Showing} showing
   * @returns {Promise<Question | null>}
   */
  async _load(showing) {
    for (;;) {
      try {
        return await load(showing);
      } catch (error) {
        if (this._running && (error instanceof Offline || (error instanceof Refused && error.passing))) {
          await pause(POLL_MS / 1000);
          continue;
        }
        // Not released: the server would send it again at once. After the lease expires, another page may succeed.
        this._onTrouble(t("Can’t show a clip: {why}", { why: error instanceof Error ? t(error.message) : String(error) }));
        return null;
      }
    }
  }

  /** Report that this page is open, and renew its leases while it is visible. */
  async _renew() {
    const hidden = document.hidden;
    const leases = hidden ? [] : this._held();
    if (!this._running || !(leases.length || hidden)) return; // without leases, the request for questions reports it
    const renewed = hidden ? [] : [this.current, ...this._ahead];
    try {
      const { lost, ...heard } = await call("POST", "api/leases/renew", { leases, page: PAGE });
      for (const question of renewed) if (question) question.until = Date.now() + question.showing.expires_in * 1000;
      this._drop((question) => lost.includes(question.showing.lease));
      if (this.current && lost.includes(this.current.showing.lease)) {
        close(this.current);
        this._onReady();
      }
      this._hear(heard);
    } catch {
      // Retried at the next poll; late answers are accepted too.
    }
  }

  /**
   * Drop prefetched questions that this page no longer holds.
   * @param {(question: Question) => boolean} which
   */
  _drop(which) {
    for (const question of this._ahead.filter(which)) close(question);
    this._ahead = this._ahead.filter((question) => !which(question));
  }

  /** Visible again: drop prefetched questions with expired leases, which others may have by now. The current one may be answered late. */
  _visible() {
    if (document.hidden) return;
    this._drop((question) => question.until <= Date.now());
    this._renew();
    this.fill();
  }
}
