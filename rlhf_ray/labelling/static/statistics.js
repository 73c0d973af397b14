/** The statistics page: who answers how, and for the owner what each one's labels count for. @module */
import { call, Refused } from "./api.js";
import { byId, make, say } from "./dom.js";
import { enter, onEntrance } from "./session.js";

const LOOK_EVERY_MS = 10000;
const NONE = "–";

/** @param {any} value @param {number} digits */
const number = (value, digits = 0) =>
  typeof value === "number" && Number.isFinite(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : NONE;
/** @param {any} value */
const percent = (value) => (typeof value === "number" && Number.isFinite(value) ? `${Math.round(100 * value)} %` : NONE);
/** @param {any} value @param {(value: number) => boolean} odd */
const told = (value, odd) => typeof value === "number" && odd(value);

/**
 * One column: its title, what it means, its text, whether that is something to look at, and whether it says nothing of somebody: a
 * column that says nothing of anybody is left out.
 * @typedef {{title: string, means: string, text: (row: any) => string, odd?: (row: any) => boolean, optional?: (row: any) => boolean}} Column
 */
/** @type {Column[]} */
const COLUMNS = [
  { title: "Labels", means: "answers that train", text: (row) => number(row.labels) },
  { title: "Skips", means: "pairs left to others", text: (row) => number(row.skips) },
  { title: "Can’t compare", means: "pairs that cannot be compared", text: (row) => number(row.incomparable) },
  { title: "Seconds per label", means: "median time a pair was in sight", text: (row) => number(row.seconds_per_label, 1) },
  { title: "Ties", means: "share of “equal”", text: (row) => percent(row.ties) },
  {
    title: "A chosen",
    means: "share of decided answers for the clip shown first; about half, since sides are drawn at random",
    text: (row) => percent(row.left_share),
    odd: (row) => row.labels >= 30 && told(row.left_share, (share) => Math.abs(share - 0.5) > 0.2),
  },
  {
    title: "Right on checks",
    means: "accuracy on pairs whose answer is known",
    text: (row) => percent(row.catch_accuracy),
    odd: (row) => row.catches >= 5 && told(row.catch_accuracy, (share) => share < 0.7),
  },
  { title: "Same answer again", means: "when a pair came back with its sides changed", text: (row) => percent(row.self_consistency) },
  {
    title: "Agreement",
    means: "with the others on shared pairs",
    text: (row) => percent(row.agreement),
    odd: (row) => row.labels >= 30 && told(row.agreement, (share) => share < 0.6),
  },
  {
    title: "With the scripted teacher",
    means: "agreement with a teacher function, where one has answered too",
    text: (row) => percent(row.agreement_with_scripted),
    optional: (row) => row.agreement_with_scripted == null,
  },
];

/** @param {any} alpha Krippendorff's */
function inWords(alpha) {
  if (typeof alpha !== "number") return "needs pairs that two people have labelled";
  if (alpha >= 0.8) return "reliable";
  if (alpha >= 0.667) return "good enough for tentative conclusions";
  return alpha > 0 ? "low: people disagree on what to prefer" : "no better than chance";
}

/**
 * @param {string} title
 * @param {string} value
 * @param {string} note
 */
const figure = (title, value, note) => make("div", { class: "card" }, make("h2", {}, title), make("strong", {}, value), make("p", { class: "quiet" }, note));

/**
 * The owner's control of one annotator's weight.
 * @param {any} row
 */
function weightOf(row) {
  const attributes = { type: "number", min: "0", max: "1", step: "0.05", "aria-label": `Weight of ${row.name}'s labels`, "data-name": String(row.name) };
  const input = /** @type {HTMLInputElement} */ (make("input", attributes));
  const before = String(row.weight ?? 1);
  input.value = before;
  input.addEventListener("change", async () => {
    const weight = input.valueAsNumber;
    if (!(weight >= 0 && weight <= 1)) {
      say("A weight is between 0 (left out) and 1.");
      input.value = before;
      return;
    }
    try {
      await call("POST", "api/weights", { annotator: row.name, weight });
      say(weight === 0 ? `${row.name}'s labels are left out. Nothing is deleted.` : `${row.name}'s labels now count ${weight}.`);
    } catch (error) {
      input.value = before;
      say(error instanceof Refused ? `Not set: ${error.message}` : "Not set: can’t reach the server.");
    }
  });
  return input;
}

/**
 * @param {any} statistics
 * @param {boolean} owner
 */
function show(statistics, owner) {
  const figures = [figure("Labels", number(statistics.labels), "from all annotators")];
  if (owner) {
    figures.push(figure("Krippendorff’s α", number(statistics.alpha, 2), inWords(statistics.alpha)));
    figures.push(figure("Raw agreement", percent(statistics.raw_agreement), "the same answer on shared pairs"));
  }
  byId("figures").replaceChildren(...figures);
  /** @type {any[]} */
  const rows = statistics.annotators ?? [];
  const columns = COLUMNS.filter(({ optional }) => !optional || !rows.every(optional));
  // Roles in so many words: a narrow page shows rows as lists, and browsers then take tables for none.
  const heads = columns.map(({ title, means }) => make("th", { scope: "col", role: "columnheader", title: means }, title));
  const [name, last] = ["Name", "Weight"].map((title) => make("th", { scope: "col", role: "columnheader" }, title));
  byId("columns").replaceChildren(make("tr", { role: "row" }, name, ...heads, last));
  byId("people").replaceChildren(
    ...rows.map((row) => {
      const cells = columns.map(({ title, text, odd }) =>
        make("td", { role: "cell", "data-title": title, ...(odd?.(row) ? { class: "odd", title: "worth a look" } : {}) }, text(row)),
      );
      const weight = make("td", { role: "cell", "data-title": "Weight" }, owner ? weightOf(row) : number(row.weight ?? 1, 2));
      const who = `${row.name ?? "?"}${row.weight === 0 ? " (left out)" : ""}`;
      return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, who), ...cells, weight);
    }),
  );
  const notes = columns.map(({ title, means }) => `${title}: ${means}.`).join(" ");
  const none = owner ? "Nobody has answered yet." : "You have not answered yet.";
  const whose = owner ? "" : " Only the first annotator sees everybody's numbers.";
  byId("notes").textContent = (rows.length ? `${notes} What is marked with ! is worth a look.` : none) + whose;
}

/** @param {import("./session.js").Me} me */
function begin(me) {
  document.title = `Statistics · ${me.title}`;
  byId("work-statistics").hidden = false;
  const look = async () => {
    // Not under somebody's hands.
    if (document.hidden || document.activeElement?.matches(".people input")) return;
    await call("GET", "api/statistics").then(
      (statistics) => show(statistics, me.owner),
      () => {}, // the next look may do better
    );
  };
  look();
  setInterval(look, LOOK_EVERY_MS);
}

onEntrance(() => (byId("work-statistics").hidden = true));
enter(begin);
