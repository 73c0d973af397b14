/** The agent's latest full episode, beside the clips: shows what the answers lead to. @module */
import { call, sheet } from "./api.js";
import { byId } from "./dom.js";
import { Player } from "./player.js";

const LOOK_EVERY_MS = 8000;

/**
 * Keep the episode panel up to date.
 * @param {boolean} playing whether the episode autoplays
 */
export function showEpisodes(playing) {
  const canvas = /** @type {HTMLCanvasElement} */ (byId("episode-canvas"));
  const button = byId("episode-play");
  const player = new Player([canvas], (shown) => {
    button.dataset.playing = String(shown.playing);
    button.setAttribute("aria-label", shown.playing ? "Pause the episode" : "Play the episode");
  });
  player.playing = playing;
  button.addEventListener("click", () => player.toggle());
  let shown = "";
  /** @type {ImageBitmap | null} */
  let picture = null;

  const look = async () => {
    if (document.hidden) return;
    try {
      const episode = await call("GET", "api/episode");
      if (!episode) return;
      if (episode.film.id !== shown) {
        const next = await sheet(episode.film.id);
        byId("episode-none").hidden = true;
        byId("episode").hidden = false;
        player.show([{ info: episode.film, sheet: next }], episode.fps);
        picture?.close();
        picture = next;
        shown = episode.film.id;
      }
      const steps = Number(episode.steps ?? 0).toLocaleString("en");
      const long = episode.ended === false ? `its first ${steps} steps` : `${steps} steps long`;
      byId("episode-text").textContent = `Filmed after ${Number(episode.env_steps ?? 0).toLocaleString("en")} environment steps; ${long}.`;
    } catch {
      // Retried at the next poll; the clips matter more.
    }
  };
  look();
  setInterval(look, LOOK_EVERY_MS);
  document.addEventListener("visibilitychange", look);
}
