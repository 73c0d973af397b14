/** Sign-in: exchanges the link's token for this tab's session, or shows the form to paste a link. @module */
import { call, currentSession, Refused, useSession } from "./api.js";
import { byId, pause } from "./dom.js";
import { t } from "./text.js";

/** @typedef {{name: string, owner: boolean, session: string, title: string, instructions: string}} Me */

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
 * Sign in with the token in the address, this tab's session or, in a new tab, the browser's cookie; or ask for a link.
 * @param {(me: Me) => void} begin
 */
export async function enter(begin) {
  const entrance = byId("entrance");
  let whose = "";
  const signingOut = new BroadcastChannel(`rlhf_ray.sign-out ${new URL(".", location.href).pathname}`);
  /** @param {string} why */
  const ask = (why) => {
    if (!why && !navigator.cookieEnabled) why = t("This browser blocks cookies and site data, so a reload signs you out. Open your link again.");
    if (why) byId("entrance-why").textContent = why;
    if (!entrance.hidden) return;
    entrance.hidden = false;
    closed();
  };
  /** @param {string} token */
  const come = async (token) => {
    for (;;) {
      try {
        const entered = token ? (await call("POST", "api/session", { token })).session : currentSession() || null;
        const me = await call("GET", "api/me", undefined, {}, entered);
        if (whose && whose !== me.name) {
          // A new page, because this one sends what is left of the other's answers until it closes.
          history.replaceState(null, "", `${location.pathname}${location.search}#token=${encodeURIComponent(token)}`);
          location.reload();
          return;
        }
        useSession(me.session);
        whose = me.name;
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
  const leave = () => {
    useSession("");
    ask(t("You are signed out. Open your link to sign in again."));
  };
  document.getElementById("leave")?.addEventListener("click", async () => {
    await call("DELETE", "api/session").catch(() => {});
    signingOut.postMessage(whose); // to this annotator's other tabs
    leave();
  });
  signingOut.addEventListener("message", ({ data }) => data === whose && leave());
  addEventListener("signed-out", () => ask(""));
  addEventListener("hashchange", arrive);
  await arrive();
}
