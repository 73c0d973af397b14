/**
 * Questions from the desk: some fetched ahead with their films decoded, so that the next pair is there when a key is pressed. Leases
 * are kept alive while somebody can see the page, and given back when they leave.
 * @module
 */
import { call, Offline, Refused, sheet } from "./api.js";
import { newId, pause } from "./dom.js";

/** @typedef {import("./player.js").FilmInfo} FilmInfo */
/** @typedef {import("./player.js").Film} Film */
/** @typedef {{lease: string, left: FilmInfo, right: FilmInfo, fps: number, expires_in: number}} Showing */
/** @typedef {{showing: Showing, films: Film[], until: number}} Question a showing with its films; `until` in ms since the epoch */

const AHEAD = 3;
/** How often there is a look for more questions, and the server is told that this page is open. */
const POLL_MS = 2000;
/** Answers that wait to be saved, from which on no further pairs are asked for. */
const MOST_WAITING = 24;
/** Leases that the server lets a page name. */
const MOST_HELD = 36;

/** This page, among those that one person has open: what a page held whose browser crashed goes to the page they open next. */
export const PAGE = newId();

/**
 * A showing with its films, decoded.
 * @param {Showing} showing
 * @returns {Promise<Question>}
 */
export async function load(showing) {
  const infos = [showing.left, showing.right];
  const sheets = await Promise.all(infos.map((info) => sheet(info.id)));
  return { showing, films: infos.map((info, at) => ({ info, sheet: sheets[at] })), until: Date.now() + showing.expires_in * 1000 };
}

/** Free the pictures of a question. @param {Question} question */
export function close(question) {
  for (const film of question.films) film.sheet.close();
}

/** The questions of this page: the one on screen, and those behind it. */
export class Questions {
  /**
   * @param {() => void} onReady there is a question again
   * @param {(progress: any) => void} onProgress
   * @param {(text: string) => void} onTrouble why none comes, where the server cannot say
   * @param {() => import("./outbox.js").Outbox | undefined} outbox where answers are that are not saved yet: their pairs are held like
   *   those on screen
   */
  constructor(onReady, onProgress, onTrouble, outbox) {
    this._onReady = onReady;
    this._onProgress = onProgress;
    this._onTrouble = onTrouble;
    this._outbox = outbox;
    /** @type {Question | null} */
    this.current = null;
    /** @type {Question[]} */
    this._ahead = [];
    this._fetching = false;
    this._running = false;
    document.addEventListener("visibilitychange", () => this._visible());
    addEventListener("pagehide", () => this.release());
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
    this.release();
  }

  /** The next question becomes the current one; null where none is ready. */
  advance() {
    this.current = this._ahead.shift() ?? null;
    this.fill();
    return this.current;
  }

  /**
   * Show this question now and the current one after it.
   * @param {Question} question
   */
  putBefore(question) {
    if (this.current) this._ahead.unshift(this.current);
    this.current = question;
  }

  /** Fetch until enough are ahead. */
  async fill() {
    if (this._fetching || !this._running || document.hidden || this._ahead.length >= AHEAD) return;
    const waiting = this._outbox()?.waiting ?? 0;
    if (waiting >= MOST_WAITING) {
      this._onTrouble(`Your last ${waiting} answers are not saved yet. The next pair comes when they are.`);
      return;
    }
    this._fetching = true;
    try {
      const wish = { count: AHEAD - this._ahead.length + (this.current ? 0 : 1), holding: this._held(), page: PAGE };
      const { questions, progress } = await call("POST", "api/questions", wish);
      this._onProgress(progress);
      // In order, each as soon as it is there: the first is not kept waiting by the films of the third.
      const loading = questions.map((/** @type {Showing} */ showing) => this._load(showing));
      for (const question of loading) {
        const loaded = await question;
        if (!loaded) continue;
        if (!this._running) this._giveBack([loaded.showing.lease]);
        else this._ahead.push(loaded);
        if (this._running && !this.current) this._onReady();
      }
    } catch (error) {
      this._onTrouble(error instanceof Refused ? error.message : "Can’t reach the server; retrying.");
    } finally {
      this._fetching = false;
    }
  }

  /** Give everything back, in a way that outlives the page. */
  release() {
    const leases = this._leases();
    for (const question of this._ahead) close(question);
    this._ahead = [];
    this.current = null;
    this._giveBack(leases);
  }

  /** @returns {string[]} */
  _leases() {
    return [this.current, ...this._ahead].flatMap((question) => (question ? [question.showing.lease] : []));
  }

  /** @returns {string[]} */
  _held() {
    return [...this._leases(), ...(this._outbox()?.leases ?? [])].slice(0, MOST_HELD);
  }

  /** @param {string[]} leases */
  _giveBack(leases) {
    if (leases.length) call("POST", "api/leases/release", { leases }, { keepalive: true }).catch(() => {});
  }

  /**
   * The question with its films, fetched again while the server is away; null where a film can't be shown.
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
        // Not given back: it would come again at once. When its lease runs out, somebody may have more luck.
        this._onTrouble(`Can’t show a clip: ${error instanceof Error ? error.message : error}`);
        return null;
      }
    }
  }

  /** Say that this page is open, and keep its questions while somebody can see it. */
  async _renew() {
    const hidden = document.hidden;
    const leases = hidden ? [] : this._held();
    if (!this._running || !(leases.length || hidden)) return; // a page that holds nothing asks for more, which says it too
    const renewed = hidden ? [] : [this.current, ...this._ahead];
    try {
      const { lost } = await call("POST", "api/leases/renew", { leases, page: PAGE });
      for (const question of renewed) if (question) question.until = Date.now() + question.showing.expires_in * 1000;
      this._drop((question) => lost.includes(question.showing.lease));
      if (this.current && lost.includes(this.current.showing.lease)) {
        close(this.current);
        this._onReady();
      }
    } catch {
      // The next time; an answer is taken late too.
    }
  }

  /**
   * Forget those behind the one on screen that are no longer this page's.
   * @param {(question: Question) => boolean} which
   */
  _drop(which) {
    for (const question of this._ahead.filter(which)) close(question);
    this._ahead = this._ahead.filter((question) => !which(question));
  }

  /** Back on screen: what has run out meanwhile may be with somebody else now. The one on screen may be answered late. */
  _visible() {
    if (document.hidden) return;
    this._drop((question) => question.until <= Date.now());
    this._renew();
    this.fill();
  }
}
