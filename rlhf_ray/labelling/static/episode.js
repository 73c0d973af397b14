/** The agent's latest full episode, beside the clips: shows what the answers lead to. @module */
import { call, sheet } from "./api.js";
import { byId } from "./dom.js";
import { Player } from "./player.js";
import { PAGE } from "./questions.js";
import { LOCALE, t } from "./text.js";

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
    button.setAttribute("aria-label", shown.playing ? t("Pause the episode") : t("Play the episode"));
  });
  player.playing = playing;
  button.addEventListener("click", () => player.toggle());
  let shown = "";
  /** @type {ImageBitmap | null} */
  let picture = null;

  const look = async () => {
    if (document.hidden && document.body.dataset.ended !== "true") return;
    try {
      const episode = await call("GET", "api/episode");
      if (!episode) return;
      if (episode.film.id !== shown) {
        const next = await sheet(episode.film.id, PAGE);
        byId("episode-none").hidden = true;
        byId("episode").hidden = false;
        player.show([{ info: episode.film, sheet: next }], episode.fps);
        picture?.close();
        picture = next;
        shown = episode.film.id;
      }
      const [steps, after] = [episode.steps, episode.env_steps].map((count) => Number(count ?? 0).toLocaleString(LOCALE));
      byId("episode-text").textContent =
        episode.ended === false
          ? t("Filmed after {after} environment steps; its first {steps} steps.", { after, steps })
          : t("Filmed after {after} environment steps; {steps} steps long.", { after, steps });
    } catch {
      // Retried at the next poll; the clips matter more.
    }
  };
  look();
  setInterval(look, LOOK_EVERY_MS);
  document.addEventListener("visibilitychange", look);
  // The last one, before the server closes.
  addEventListener("ended", () => [0, 700].forEach((wait) => setTimeout(look, wait)));
}
