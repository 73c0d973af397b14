/** Requests to the server this page came from. @module */

/** The server said no, and says why. */
export class Refused extends Error {
  /**
   * @param {number} status HTTP's
   * @param {string} detail in words
   * @param {number} wait seconds to wait before trying again, where trying again helps
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

/** No answer: the network or the server is away. */
export class Offline extends Error {}

/**
 * @param {"GET" | "POST" | "DELETE"} method
 * @param {string} path relative to the page, so that it may be mounted anywhere
 * @param {unknown} [body] sent as JSON
 * @param {{keepalive?: boolean}} [options]
 * @returns {Promise<any>} the answer's JSON
 * @throws {Refused | Offline}
 */
export async function call(method, path, body, options = {}) {
  const init = { method, ...options, headers: method === "GET" ? {} : { "content-type": "application/json" } };
  if (method !== "GET") Object.assign(init, { body: JSON.stringify(body ?? {}) });
  let response;
  try {
    response = await fetch(path, { ...init, signal: AbortSignal.timeout(30000) });
    if (response.ok) return await response.json();
  } catch (error) {
    throw new Offline(String(error));
  }
  const { detail } = await response.json().catch(() => ({ detail: "" }));
  // A proxy's own words: it does not reach the server either.
  if ([502, 503, 504].includes(response.status) && !detail) throw new Offline(response.statusText);
  if (response.status === 401) dispatchEvent(new Event("signed-out"));
  throw new Refused(response.status, String(detail || response.statusText), Number(response.headers.get("retry-after")) || 1);
}

/**
 * The sheet of a film, decoded.
 * @param {string} id
 * @returns {Promise<ImageBitmap>}
 * @throws {Refused | Offline}
 */
export async function sheet(id) {
  let response;
  try {
    response = await fetch(`api/films/${id}`);
    if (response.ok) {
      // As the pixels are: no colour profiles, nothing multiplied.
      return await createImageBitmap(await response.blob(), { premultiplyAlpha: "none", colorSpaceConversion: "none" });
    }
  } catch (error) {
    if (error instanceof DOMException && error.name === "InvalidStateError") throw new Refused(415, "a film is no picture", 0);
    throw new Offline(String(error));
  }
  throw new Refused(response.status, "the server has no such film any more", Number(response.headers.get("retry-after")) || 1);
}
