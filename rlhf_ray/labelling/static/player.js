/**
 * Films on canvases: one clock for all films of a player, so two clips stay on the same frame to the frame.
 *
 * A film is a sheet of frames; frame k is drawn from the sheet at its own size, pixel for pixel, and the canvas is enlarged by CSS.
 * @module
 */

/**
 * @typedef {object} FilmInfo
 * @property {string} id
 * @property {number} frames
 * @property {number} columns
 * @property {number} width
 * @property {number} height
 * @property {boolean} pixelated
 */
/** @typedef {{info: FilmInfo, sheet: ImageBitmap}} Film */

/** Seconds for which the last frame stays before the films start again. */
export const HOLD_S = 0.3;
export const SPEEDS = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4];

/**
 * Draw one frame; past the end, the last.
 * @param {HTMLCanvasElement} canvas
 * @param {Film} film
 * @param {number} frame
 */
export function draw(canvas, film, frame) {
  const { frames, columns, width, height } = film.info;
  const k = Math.max(0, Math.min(frame, frames - 1));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
  context.imageSmoothingEnabled = false;
  context.drawImage(film.sheet, (k % columns) * width, Math.floor(k / columns) * height, width, height, 0, 0, width, height);
  canvas.dataset.frame = String(k);
}

/**
 * Give the canvases the largest size that fits their stages: the same scale for all, and whole screen pixels for each of theirs where
 * the film is pixelated.
 * @param {HTMLCanvasElement[]} canvases
 * @param {Film[]} films
 */
export function fit(canvases, films) {
  const ratio = devicePixelRatio || 1;
  const largest = { width: Math.max(...films.map((film) => film.info.width)), height: Math.max(...films.map((film) => film.info.height)) };
  const stages = canvases.map((canvas) => /** @type {HTMLElement} */ (canvas.parentElement));
  for (const stage of stages) stage.style.setProperty("--ratio", String(largest.width / largest.height));
  let scale = Math.min(...stages.map((stage) => Math.min(stage.clientWidth / largest.width, stage.clientHeight / largest.height)));
  if (!(scale > 0)) return; // not on screen
  const pixelated = films.some((film) => film.info.pixelated);
  if (pixelated && scale * ratio >= 1) scale = Math.floor(scale * ratio) / ratio;
  canvases.forEach((canvas, at) => {
    canvas.style.width = `${films[at].info.width * scale}px`;
    canvas.style.height = `${films[at].info.height * scale}px`;
    canvas.classList.toggle("pixelated", films[at].info.pixelated);
  });
}

/** Plays films of one frame rate together, over and over. */
export class Player {
  /**
   * @param {HTMLCanvasElement[]} canvases one for each film
   * @param {(player: Player) => void} [onChange] after each frame drawn, and when playing starts or stops
   */
  constructor(canvases, onChange = () => {}) {
    this.canvases = canvases;
    this.speed = 1;
    this.playing = true;
    /** How often each film was seen to its end. @type {number[]} */
    this.loops = canvases.map(() => 0);
    this._onChange = onChange;
    /** @type {Film[]} */
    this._films = [];
    this._fps = 1;
    this._at = 0; // seconds of film, at speed 1
    this._held = 0; // seconds on the last frame
    this._frame = -1;
    this._last = 0;
    this._tick = this._tick.bind(this);
    const watch = new ResizeObserver(() => this._films.length && fit(this.canvases, this._films));
    for (const canvas of canvases) watch.observe(/** @type {HTMLElement} */ (canvas.parentElement));
    requestAnimationFrame(this._tick);
  }

  /** Frames of the longest film. */
  get length() {
    return Math.max(0, ...this._films.map((film) => film.info.frames));
  }

  get frame() {
    return this._frame;
  }

  /**
   * Show other films, from their first frames, at once.
   * @param {Film[]} films
   * @param {number} fps
   */
  show(films, fps) {
    this._films = films;
    this._fps = fps;
    this.loops = films.map(() => 0);
    if (films.length) fit(this.canvases, films);
    this.restart();
  }

  /** The first frame again. */
  restart() {
    this._seen = this._films.map(() => false);
    this._move(0);
  }

  /**
   * Stop at a frame.
   * @param {number} frame
   */
  seek(frame) {
    this.playing = false;
    this._move(Math.max(0, Math.min(frame, this.length - 1)));
  }

  /**
   * Stop, `by` frames on; past the end comes the start.
   * @param {number} by
   */
  step(by) {
    if (this.length) this.seek((this._frame + by + this.length) % this.length);
  }

  toggle() {
    this.playing = !this.playing;
    this._onChange(this);
  }

  /**
   * One of `SPEEDS` faster (1) or slower (-1).
   * @param {number} by
   */
  accelerate(by) {
    const at = SPEEDS.indexOf(this.speed) + by;
    this.speed = SPEEDS[Math.max(0, Math.min(at, SPEEDS.length - 1))];
    this._onChange(this);
  }

  /** @param {number} frame */
  _move(frame) {
    this._at = (frame + 0.5) / this._fps; // the middle of the frame: no rounding leads to its neighbour
    this._held = 0;
    this._draw(frame);
  }

  /** @param {number} frame */
  _draw(frame) {
    this._frame = frame;
    this._films.forEach((film, at) => draw(this.canvases[at], film, frame));
    this._onChange(this);
  }

  /** @param {number} now milliseconds */
  _tick(now) {
    requestAnimationFrame(this._tick);
    const passed = Math.min((now - this._last) / 1000, 0.25); // after a pause of the whole page, go on where it was
    this._last = now;
    if (!this.playing || !this._films.length) return;
    const end = this.length / this._fps;
    this._at += passed * this.speed;
    if (this._at >= end) {
      this._held += passed;
      this._at = end;
      if (this._held >= HOLD_S) {
        this.restart();
        return;
      }
    }
    const frame = Math.min(Math.floor(this._at * this._fps), this.length - 1);
    if (frame !== this._frame) this._draw(frame);
    this._films.forEach((film, at) => {
      if (this._seen[at] || frame < film.info.frames - 1) return;
      this._seen[at] = true;
      this.loops[at] += 1;
    });
  }
}
