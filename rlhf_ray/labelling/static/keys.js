/** Keyboard shortcuts. Annotators can change them or turn them off; stored in this browser. @module */
import { ANSWERS } from "./answers.js";
import { byId, keep, kept, make } from "./dom.js";
import { MODIFIERS, namesOf } from "./keyboard.js";
import { t } from "./text.js";

/** Answers and other actions with their label and default keys. @type {Record<string, {text: string, keys: string[]}>} */
export const ACTIONS = {
  ...Object.fromEntries(ANSWERS.map(({ name, text, keys }) => [name, { text: t(text), keys }])),
  undo: { text: t("Undo the last answer"), keys: ["z", "Backspace"] },
  pause: { text: t("Pause or play"), keys: [" "] },
  restart: { text: t("Restart"), keys: ["r"] },
  back: { text: t("Previous frame"), keys: [","] },
  forward: { text: t("Next frame"), keys: ["."] },
  slower: { text: t("Slower"), keys: ["["] },
  faster: { text: t("Faster"), keys: ["]"] },
  keep: { text: t("Keep the answer"), keys: ["Enter"] },
  help: { text: t("This help"), keys: ["?"] },
};
/** Actions that repeat while a key is held down. */
const REPEATING = new Set(["back", "forward"]);
const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowDown: "↓", ArrowUp: "↑", " ": t("space"), Backspace: "⌫", Enter: "⏎" };

/** @param {string} key as in `KeyboardEvent.key` */
export const nameOf = (key) => NAMES[/** @type {keyof typeof NAMES} */ (key)] ?? key;

/** The page's keyboard shortcuts. */
export class Keys {
  /**
   * @param {(action: string, key: string) => void} onAction
   * @param {string[]} actions those of this page
   */
  constructor(onAction, actions) {
    this._onAction = onAction;
    this._actions = actions;
    /** @type {Record<string, string[]>} */
    this._keys = {};
    const changed = kept("keys", /** @type {Record<string, string[]>} */ ({}));
    for (const [action, { keys }] of Object.entries(ACTIONS)) this._keys[action] = changed[action] ?? keys;
    this._keepArrows();
    this._on = kept("keys-on", true);
    /** The action that waits for its new key. @type {string | null} */
    this._asking = null;
    addEventListener("keydown", (event) => this._press(event));
    const box = /** @type {HTMLInputElement} */ (byId("keys-on"));
    box.checked = this._on;
    box.addEventListener("change", () => {
      keep("keys-on", (this._on = box.checked));
      this._print();
    });
    byId("keys-reset").addEventListener("click", () => {
      for (const [action, { keys }] of Object.entries(ACTIONS)) this._keys[action] = keys;
      keep("keys", null);
      this._print();
      byId("keys-said").textContent = t("Keys are reset.");
    });
    byId("help").addEventListener("close", () => (this._asking = null));
    // While waiting for a new key, Escape cancels that and keeps the dialog open.
    byId("help").addEventListener("cancel", (event) => this._asking && event.preventDefault());
    this._print();
  }

  /** @param {KeyboardEvent} event */
  _press(event) {
    const names = namesOf(event);
    if (!names.length) return;
    if (this._asking) {
      this._assign(event, names[0]);
      return;
    }
    const pressed = event.target instanceof Element && event.target.closest("button");
    // Enter held down presses a focused button repeatedly, which would answer pairs that the annotator has not seen.
    if (event.repeat && pressed && event.key === "Enter") event.preventDefault();
    if (!this._on || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const target = event.target instanceof Element ? event.target : document.body;
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    // A focused button or link handles these keys itself.
    if ((event.key === " " || event.key === "Enter") && target.closest("button, a, summary")) return;
    const actions = this._actions;
    const key = names.find((name) => actions.some((action) => this._keys[action].includes(name)));
    const action = actions.find((action) => key !== undefined && this._keys[action].includes(key));
    if (!action) return;
    event.preventDefault();
    if (!event.repeat || REPEATING.has(action)) this._onAction(action, names[0]);
  }

  /** Give every arrow back to its action, unless another action took it: whatever else is changed, arrows answer. */
  _keepArrows() {
    const taken = new Set(Object.values(this._keys).flat());
    for (const [action, { keys }] of Object.entries(ACTIONS)) {
      this._keys[action] = [...this._keys[action], ...keys.filter((key) => key.startsWith("Arrow") && !taken.has(key))];
    }
  }

  /**
   * @param {KeyboardEvent} event
   * @param {string} key
   */
  _assign(event, key) {
    if (key === "Tab" || MODIFIERS.has(key)) return; // Tab moves focus
    event.preventDefault();
    const action = /** @type {string} */ (this._asking);
    this._asking = null;
    if (key !== "Escape") {
      for (const other of Object.keys(this._keys)) this._keys[other] = this._keys[other].filter((taken) => taken !== key);
      this._keys[action] = [key];
      this._keepArrows();
      keep("keys", this._keys);
      byId("keys-said").textContent = `${ACTIONS[action].text}: ${nameOf(key)}`;
    }
    this._print();
    byId("keys").querySelector(`[data-for="${action}"]`)?.focus();
  }

  /** Show the keys on the buttons and in the help. */
  _print() {
    for (const cap of document.querySelectorAll("kbd[data-key]")) {
      const key = this._keys[cap.getAttribute("data-key") ?? ""]?.[0];
      cap.textContent = this._on && key ? nameOf(key) : "";
    }
    byId("keys").replaceChildren(
      ...this._actions.map((action) => {
        const { text } = ACTIONS[action];
        const keys = this._keys[action].map(nameOf).join(` ${t("or")} `) || t("none");
        const asking = this._asking === action;
        const attributes = { type: "button", class: "cap", "data-for": action, "aria-label": t("{action}: {keys}. Change", { action: text, keys }) };
        const button = make("button", attributes, asking ? t("press a key …") : keys);
        button.addEventListener("click", () => {
          this._asking = asking ? null : action;
          byId("keys-said").textContent = asking ? "" : t("Press the new key for “{action}”, or Escape to cancel.", { action: text });
          this._print();
          /** @type {HTMLElement | null} */ (byId("keys").querySelector(`[data-for="${action}"]`))?.focus();
        });
        return make("tr", {}, make("th", { scope: "row" }, text), make("td", {}, button));
      }),
    );
  }
}
