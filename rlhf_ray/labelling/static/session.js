/** Sign-in: exchanges the link's token for a cookie, or shows the form to paste a link. @module */
import { call, Refused } from "./api.js";
import { byId, pause } from "./dom.js";
import { t } from "./text.js";

/** @typedef {{name: string, owner: boolean, title: string, instructions: string}} Me */

/** @type {() => void} */
let closed = () => {};

/** @param {() => void} handler called when the page needs a link again */
export function onEntrance(handler) {
  closed = handler;
}

/** The token in a link or in pasted text. @param {string} text */
function tokenIn(text) {
  return text.includes("token=") ? new URLSearchParams(text.slice(text.indexOf("token="))).get("token") ?? "" : text.trim();
}

/**
 * Sign in with the token in the address or an earlier cookie, or ask for a link.
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
          ask(token ? t(error.message) : "");
          return;
        }
        if (error instanceof Refused && !error.passing) {
          ask(t(error.message));
          return;
        }
        await pause(error instanceof Refused ? error.wait : 2);
      }
    }
  };
  const arrive = () => {
    const token = location.hash ? tokenIn(location.hash.slice(1)) : "";
    // Remove the token from the address, to keep it out of bookmarks, screenshots and the history.
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
    ask(t("You are signed out. Open your link to sign in again."));
  });
  addEventListener("signed-out", () => ask(""));
  addEventListener("hashchange", arrive);
  await arrive();
}
