/** The page's texts in its language. @module */
import { LANGUAGE, TEXTS } from "./texts.js";

/** The language for numbers; English where the browser doesn't know it. */
export const LOCALE = (() => {
  try {
    return Intl.getCanonicalLocales(LANGUAGE)[0];
  } catch {
    return "en";
  }
})();

/**
 * A text in the page's language.
 * @param {string} english with {names} of values; the server's messages too, if they are in the file of texts
 * @param {Record<string, string | number>} [values]
 */
export function t(english, values = {}) {
  return (TEXTS[english] ?? english).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}
