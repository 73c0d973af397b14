/** Who is here: the link's token for a cookie, and the form for those who come without either. @module */
import { call, Refused } from "./api.js";
import { byId, pause } from "./dom.js";

/** @typedef {{name: string, owner: boolean, title: string, instructions: string}} Me */

/** @type {() => void} */
let closed = () => {};

/** @param {() => void} handler called when the page can no longer be used without a link */
export function onEntrance(handler) {
  closed = handler;
}

/** The token in a link or in what was pasted. @param {string} text */
function tokenIn(text) {
  return text.includes("token=") ? new URLSearchParams(text.slice(text.indexOf("token="))).get("token") ?? "" : text.trim();
}

/**
 * Come in with the address's token or an earlier cookie, or ask for a link.
 * @param {(me: Me) => void} begin
 */
export async function enter(begin) {
  const entrance = byId("entrance");
  /** @param {string} why */
  const ask = (why) => {
    if (why) byId("entrance-why").textContent = why;
    if (!entrance.hidden) return;
    entrance.hidden = false;
    closed();
  };
  /** @param {string} token */
  const come = async (token) => {
    for (;;) {
      try {
        if (token) await call("POST", "api/session", { token });
        const me = await call("GET", "api/me");
        entrance.hidden = true;
        begin(me);
        return;
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          ask(token ? error.message : "");
          return;
        }
        if (error instanceof Refused && !error.passing) {
          ask(error.message);
          return;
        }
        await pause(error instanceof Refused ? error.wait : 2);
      }
    }
  };
  const arrive = () => {
    const token = location.hash ? tokenIn(location.hash.slice(1)) : "";
    // Out of the address at once: not into bookmarks, screenshots and histories.
    if (token) history.replaceState(null, "", location.pathname + location.search);
    return come(token);
  };
  byId("entrance-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (byId("entrance-link"));
    const token = tokenIn(field.value);
    field.value = "";
    come(token);
  });
  document.getElementById("leave")?.addEventListener("click", async () => {
    await call("DELETE", "api/session").catch(() => {});
    ask("You have left. Come back with your link.");
  });
  addEventListener("signed-out", () => ask(""));
  addEventListener("hashchange", arrive);
  await arrive();
}
