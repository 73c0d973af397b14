/**
 * Plays films on canvases. All films of a player share one clock, so two clips always show the same frame index.
 *
 * A film is a sprite sheet; frame k is drawn at its original size, pixel for pixel, and CSS enlarges the canvas.
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
 * @property {number | null} zoom
 */
/** @typedef {{info: FilmInfo, sheet: ImageBitmap}} Film */

/** Seconds to hold the last frame before the films restart. */
export const HOLD_S = 0.3;
export const SPEEDS = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4];

/**
 * Draw one frame; past the end, draw the last one.
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
 * Scale the canvases to the largest size that fits their stages. All share one scale; for pixelated films the scale is a whole number
 * of screen pixels per film pixel, and at most their zoom.
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
  scale = Math.min(scale, ...films.flatMap((film) => film.info.zoom ?? []));
  canvases.forEach((canvas, at) => {
    canvas.style.width = `${films[at].info.width * scale}px`;
    canvas.style.height = `${films[at].info.height * scale}px`;
    canvas.classList.toggle("pixelated", films[at].info.pixelated);
  });
}

/** Plays films of one frame rate in sync, in a loop. */
export class Player {
  /**
   * @param {HTMLCanvasElement[]} canvases one per film
   * @param {(player: Player) => void} [onChange] called after each frame drawn and when playback starts or stops
   */
  constructor(canvases, onChange = () => {}) {
    this.canvases = canvases;
    this.speed = 1;
    this.playing = true;
    /** How many times each film played to its end. @type {number[]} */
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

  /** Number of frames of the longest film. */
  get length() {
    return Math.max(0, ...this._films.map((film) => film.info.frames));
  }

  get frame() {
    return this._frame;
  }

  /**
   * Show other films at once, from their first frames.
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

  /** Go to the first frame. */
  restart() {
    this._seen = this._films.map(() => false);
    this._move(0);
  }

  /**
   * Pause at a frame.
   * @param {number} frame
   */
  seek(frame) {
    this.playing = false;
    this._move(Math.max(0, Math.min(frame, this.length - 1)));
  }

  /**
   * Pause and step by `by` frames; wraps around at both ends.
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
   * Go one step of `SPEEDS` faster (1) or slower (-1).
   * @param {number} by
   */
  accelerate(by) {
    const at = SPEEDS.indexOf(this.speed) + by;
    this.speed = SPEEDS[Math.max(0, Math.min(at, SPEEDS.length - 1))];
    this._onChange(this);
  }

  /** @param {number} frame */
  _move(frame) {
    this._at = (frame + 0.5) / this._fps; // the middle of the frame, so that rounding never picks a neighbour
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
    const passed = Math.min((now - this._last) / 1000, 0.25); // after the whole page was suspended, resume at the same frame
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
