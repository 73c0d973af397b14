/** Requests to the page's server. @module */

/** Where this tab keeps its session: by the page's folder, because several runs may share a host. */
const KEPT = `rlhf_ray.session ${new URL(".", location.href).pathname}`;

/** After this long without a byte, a connection is given up. */
const TIMEOUT_MS = 30000;

/** The server rejected the request and says why. */
export class Refused extends Error {
  /**
   * @param {number} status HTTP status
   * @param {string} detail human-readable reason
   * @param {number} wait seconds to wait before a retry, if a retry helps
   */
  constructor(status, detail, wait) {
    super(detail);
    this.status = status;
    this.wait = wait;
  }

  /** Whether the same request may succeed later. */
  get passing() {
    return this.status === 429 || this.status === 408 || this.status >= 500;
  }
}

/** No response: the network or the server is down. */
export class Offline extends Error {}

/** This tab's session: it says whose requests these are, whoever signs in in another tab. Empty: nobody's. */
let session = (() => {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return ""; // site data is blocked: the session lives as long as the page
  }
})();

/** @returns {string} */
export const currentSession = () => session;

/** Send all later requests of this tab with this session. @param {string} next */
export function useSession(next) {
  session = next;
  try {
    sessionStorage.setItem(KEPT, next);
  } catch {
    // The session lives as long as the page.
  }
}

/** @param {string | null} whose a session; null: the cookie's @returns {Record<string, string>} */
const header = (whose) => (whose === null ? {} : { "x-rlhf-ray-session": whose });

/**
 * @param {"GET" | "POST" | "DELETE"} method
 * @param {string} path relative to the page, so that the page can be mounted anywhere
 * @param {unknown} [body] sent as JSON
 * @param {{keepalive?: boolean}} [options]
 * @param {string | null} [whose] the session to send; null: that of the cookie, which is of the tab that signed in last
 * @returns {Promise<any>} the response's JSON
 * @throws {Refused | Offline}
 */
export async function call(method, path, body, options = {}, whose = session) {
  const init = { method, ...options, headers: { ...header(whose), ...(method === "GET" ? {} : { "content-type": "application/json" }) } };
  if (method !== "GET") Object.assign(init, { body: JSON.stringify(body ?? {}) });
  let response;
  try {
    response = await fetch(path, { ...init, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (response.ok) return await response.json();
  } catch (error) {
    throw new Offline(String(error));
  }
  const { detail } = await response.json().catch(() => ({ detail: "" }));
  // The error page is the proxy's: the proxy can't reach the server either.
  if ([502, 503, 504].includes(response.status) && !detail) throw new Offline(response.statusText);
  if (response.status === 401) dispatchEvent(new Event("signed-out"));
  throw new Refused(response.status, String(detail || response.statusText), Number(response.headers.get("retry-after")) || 1);
}

/**
 * A film's decoded sprite sheet. A slow connection may take its time; a silent one is given up.
 * @param {string} id
 * @param {string} [page] the page that shows it, where the server waits for that
 * @returns {Promise<ImageBitmap>}
 * @throws {Refused | Offline}
 */
export async function sheet(id, page = "") {
  const silence = new AbortController();
  const giveUp = () => setTimeout(() => silence.abort(), TIMEOUT_MS);
  let timer = giveUp();
  let response;
  try {
    response = await fetch(`api/films/${id}${page && `?page=${page}`}`, { signal: silence.signal, headers: header(session) });
    if (response.ok) {
      const heard = new TransformStream({
        transform(bytes, through) {
          clearTimeout(timer);
          timer = giveUp();
          through.enqueue(bytes);
        },
      });
      const whole = await new Response(response.body?.pipeThrough(heard)).blob();
      // Raw pixels: no colour profile, no premultiplied alpha.
      return await createImageBitmap(whole, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
    }
  } catch (error) {
    if (error instanceof DOMException && error.name === "InvalidStateError") throw new Refused(415, "the server sent no valid image", 0);
    throw new Offline(String(error));
  } finally {
    clearTimeout(timer);
  }
  throw new Refused(response.status, "the server no longer has it", Number(response.headers.get("retry-after")) || 1);
}
