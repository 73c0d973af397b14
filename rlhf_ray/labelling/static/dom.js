/** Helpers shared by the page's modules. @module */

/**
 * The element with this id.
 * @template {HTMLElement} T
 * @param {string} id
 * @returns {T}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return /** @type {T} */ (found);
}

/**
 * A new element with attributes and content. Strings become text nodes; nothing is parsed as HTML.
 * @param {string} tag
 * @param {Record<string, string>} [attributes]
 * @param {...(string | Node)} content
 * @returns {HTMLElement}
 */
export function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let fading;

/**
 * Show a temporary message, on screen and to screen readers.
 * @param {string} text
 * @param {number} [seconds]
 */
export function say(text, seconds = 5) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => (toast.hidden = true), seconds * 1000);
}

/**
 * The value stored in this browser under `name`, or `otherwise`. A browser without storage (private windows) is not an error.
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function kept(name, otherwise) {
  try {
    const text = localStorage.getItem("rlhf_ray." + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * Store `value` under `name`; null deletes it.
 * @param {string} name
 * @param {unknown} value
 */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem("rlhf_ray." + name);
    else localStorage.setItem("rlhf_ray." + name, JSON.stringify(value));
  } catch {
    // Storage is full or disabled: the value lives as long as the page.
  }
}

/**
 * The stored names that start with `prefix`.
 * @param {string} prefix
 * @returns {string[]}
 */
export function keptNames(prefix) {
  try {
    return Object.keys(localStorage)
      .filter((name) => name.startsWith("rlhf_ray." + prefix))
      .map((name) => name.slice("rlhf_ray.".length));
  } catch {
    return [];
  }
}

/** 32 random hex digits: the id of an answer. @returns {string} */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {number} seconds */
export const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
