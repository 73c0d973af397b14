/** The clips' playback and its controls, and the answers' buttons: the same on each page with two clips. @module */
import { byId, keep, kept, say } from "./dom.js";
import { Player } from "./player.js";
import { t } from "./text.js";

/** Plays the two clips; moves the controls below them. */
export class Playback {
  constructor() {
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    /** Whether films autoplay. Pausing one pair also keeps the next one paused. */
    this.playing = !this.calm.matches;
    const canvases = [byId("left"), byId("right")].map((element) => /** @type {HTMLCanvasElement} */ (element));
    const scrub = (this._scrub = /** @type {HTMLInputElement} */ (byId("scrub")));
    this.player = new Player(canvases, (player) => this._print(player));
    /** @type {Record<string, () => void>} */
    this.actions = {
      pause: () => {
        this.player.toggle();
        this.playing = this.player.playing;
      },
      restart: () => this.player.restart(),
      back: () => this.player.step(-1),
      forward: () => this.player.step(1),
      slower: () => this._accelerate(-1),
      faster: () => this._accelerate(1),
      help: () => /** @type {HTMLDialogElement} */ (byId("help")).showModal(),
    };
    scrub.addEventListener("input", () => this.player.seek(Number(scrub.value)));
    scrub.addEventListener("pointerup", () => scrub.blur());
    this.calm.addEventListener("change", () => {
      this.playing = this.player.playing = !this.calm.matches;
      this._print(this.player);
    });
  }

  /**
   * Show other clips.
   * @param {import("./player.js").Film[]} films
   * @param {number} fps
   */
  show(films, fps) {
    this.player.playing = this.playing;
    this.player.show(films, fps);
  }

  /** @param {Player} player */
  _print(player) {
    byId("pair").dataset.playing = String(player.playing);
    this._scrub.max = String(Math.max(1, player.length - 1));
    this._scrub.value = String(Math.max(0, player.frame));
    this._scrub.setAttribute("aria-valuetext", t("frame {frame} of {count}", { frame: player.frame + 1, count: player.length }));
    byId("frame").textContent = player.length ? `${player.frame + 1} / ${player.length}` : "–";
    byId("speed").textContent = `${player.speed}×`;
  }

  /** @param {number} by */
  _accelerate(by) {
    this.player.accelerate(by);
    if (this.player.speed > 1 && !kept("warned-of-flicker", false)) {
      keep("warned-of-flicker", true);
      say(t("Faster playback makes flicker faster too. If the clips flash, slow down: flashing can harm people with photosensitive epilepsy."), 9);
    }
  }
}

/** Flash the button of the given answer. @param {string} answer */
export function flash(answer) {
  const button = document.querySelector(`[data-answer="${answer}"]`);
  button?.classList.remove("taken");
  requestAnimationFrame(() => button?.classList.add("taken"));
}

/**
 * Call `act` for each press of a button with an answer or an action.
 * @param {(action: string, key: null) => void} act
 */
export function onPress(act) {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button") : null;
    // Blur after a mouse click, or the space bar would press the button again instead of pausing.
    if (event.detail > 0 && document.activeElement instanceof HTMLElement && !document.querySelector("dialog[open]")) document.activeElement.blur();
    const action = button?.dataset.answer ?? button?.dataset.action;
    if (action) act(action, null);
  });
}
