/**
 * Which key a press means, on any keyboard layout.
 *
 * A key means what its layout types: the s of Dvorak is s, the z of QWERTZ is z. A key that types no Latin letter (Cyrillic ы, the &
 * of AZERTY, a dead key) also means what the key at its place types on a US keyboard.
 * @module
 */

/** Keys besides letters and digits, by their place, as `KeyboardEvent.code`. @type {Record<string, string>} */
const PLACES = { BracketLeft: "[", BracketRight: "]", Comma: ",", Period: ".", Slash: "/", Semicolon: ";", Quote: "'", Minus: "-", Equal: "=", Backquote: "`", Backslash: "\\", Space: " " };
/** What browsers say instead of a character: a dead key, an input method. */
const UNTYPED = new Set(["Dead", "Process", "Unidentified"]);
/** Keys that do nothing by themselves. */
export const MODIFIERS = new Set(["Alt", "AltGraph", "CapsLock", "Control", "Fn", "FnLock", "Meta", "NumLock", "ScrollLock", "Shift", "Symbol", "SymbolLock"]);

/**
 * What the key at this place types on a US keyboard; empty if that is not a character. With Shift: letters and ? only.
 * @param {string} code
 * @param {boolean} shift
 */
function typedAt(code, shift) {
  const [, letter, digit] = /^(?:Key([A-Z])|(?:Digit|Numpad)(\d))$/.exec(code) ?? [];
  if (letter) return letter.toLowerCase();
  if (shift) return code === "Slash" ? "?" : "";
  return digit ?? PLACES[code] ?? "";
}

/**
 * What a press may mean, the likelier first; nothing for a shortcut of the browser or the system.
 * @param {KeyboardEvent} event
 * @returns {string[]} as in `KeyboardEvent.key`, letters in lower case
 */
export function namesOf(event) {
  if (event.metaKey || (event.ctrlKey && !event.altKey)) return [];
  const typed = !UNTYPED.has(event.key);
  const single = typed && [...event.key].length === 1;
  const key = single ? event.key.normalize("NFKC").toLowerCase() : event.key;
  if (event.ctrlKey || event.altKey || event.getModifierState("AltGraph")) {
    // AltGr (on Windows Ctrl and Alt, on a Mac Option) types the [ of many layouts; with a letter it is a shortcut or another character.
    return single && !/[\p{L}\p{N}\s]/u.test(key) ? [key] : [];
  }
  const place = (typed && !single) || /^[a-z]$/.test(key) ? "" : typedAt(event.code, event.shiftKey);
  return [...new Set([typed ? key : place, place])].filter(Boolean);
}
