/** The statistics page: each annotator's numbers, and for the owner the weight of each annotator's labels. @module */
import { ANSWERS } from "./answers.js";
import { call, Refused } from "./api.js";
import { byId, make, say } from "./dom.js";
import { enter, onEntrance } from "./session.js";
import { LOCALE, t } from "./text.js";

const LOOK_EVERY_MS = 10000;
const NONE = "–";

/** @param {any} value @param {number} digits */
const number = (value, digits = 0) =>
  typeof value === "number" && Number.isFinite(value) ? value.toLocaleString(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits }) : NONE;
/** @param {any} value */
const percent = (value) => (typeof value === "number" && Number.isFinite(value) ? `${Math.round(100 * value)} %` : NONE);
/** A share with the number of answers behind it, in brackets. @param {any} row @param {string} name */
const shareOf = (row, name) => (row[name] == null ? NONE : `${percent(row[name])} (${number(row[`${name}_of`])})`);
/** @param {any} value @param {(value: number) => boolean} odd */
const told = (value, odd) => typeof value === "number" && odd(value);

/**
 * One column: its title, its meaning, its text, whether the value is suspicious (`odd`), and whether it is empty (`optional`): a
 * column that is empty in every row is hidden.
 * @typedef {{title: string, means: string, text: (row: any) => string, odd?: (row: any) => boolean, optional?: (row: any) => boolean}} Column
 */
/** @type {Column[]} */
const COLUMNS = [
  { title: t("Labels"), means: t("answers used for training"), text: (row) => number(row.labels) },
  ...ANSWERS.filter(({ counted }) => counted).map(({ counted, title, means }) => ({ title: t(title), means: t(means), text: (/** @type {any} */ row) => number(row[counted]) })),
  { title: t("Seconds per label"), means: t("median time a pair is on screen"), text: (row) => number(row.seconds_per_label, 1) },
  { title: t("Ties"), means: t("share of “equal” answers"), text: (row) => percent(row.ties), odd: (row) => row.mostly_equal },
  {
    title: t("A chosen"),
    means: t("share of answers for A, ties excluded; should be about half, because sides are random"),
    text: (row) => percent(row.left_share),
    odd: (row) => row.one_sided,
  },
  {
    title: t("Check accuracy"),
    means: t("accuracy on pairs with a known answer"),
    text: (row) => shareOf(row, "catch_accuracy"),
    odd: (row) => row.catches >= 5 && told(row.catch_accuracy, (share) => share < 0.7),
  },
  { title: t("Self-consistency"), means: t("same answer when a pair is repeated with its sides swapped"), text: (row) => shareOf(row, "self_consistency") },
  {
    title: t("Agreement"),
    means: t("same answer as the other annotators on shared pairs; guessing gives about half"),
    text: (row) => shareOf(row, "agreement"),
    odd: (row) => row.labels >= 30 && told(row.agreement, (share) => share < 0.6),
  },
  {
    title: t("Teacher agreement"),
    means: t("same answer as the scripted teacher on shared pairs"),
    text: (row) => shareOf(row, "agreement_with_scripted"),
    optional: (row) => row.agreement_with_scripted == null,
  },
  {
    title: t("Wrong answers"),
    means: t("share of answers that look wrong to the reward model, with its 95 % interval; near half, they say nothing; near all, the keys may be mixed up"),
    text: (row) => (row.error_rate == null ? NONE : `${percent(row.error_rate)} (${number(100 * row.error_rate_low)}–${percent(row.error_rate_high)})`),
    odd: (row) => ["guesses", "inverted"].includes(row.error_rate_kind),
    optional: (row) => row.error_rate == null,
  },
];

/**
 * @param {string} title
 * @param {string} value
 * @param {string} note
 */
const figure = (title, value, note) => make("div", { class: "card" }, make("h2", {}, title), make("strong", {}, value), make("p", { class: "quiet" }, note));

/**
 * The owner's input for one annotator's weight.
 * @param {any} row
 */
function weightOf(row) {
  const attributes = { type: "number", min: "0", max: "1", step: "0.05", "aria-label": t("Weight of {name}'s labels", { name: row.name }), "data-name": String(row.name) };
  const input = /** @type {HTMLInputElement} */ (make("input", attributes));
  const before = String(row.weight ?? 1);
  input.value = before;
  input.addEventListener("change", async () => {
    const weight = input.valueAsNumber;
    if (!(weight >= 0 && weight <= 1)) {
      say(t("A weight must be between 0 (excluded) and 1."));
      input.value = before;
      return;
    }
    try {
      await call("POST", "api/weights", { annotator: row.name, weight });
      const said = weight === 0 ? t("{name}'s labels are excluded. Nothing is deleted.", { name: row.name }) : t("{name}'s labels now have weight {weight}.", { name: row.name, weight });
      say(said);
    } catch (error) {
      input.value = before;
      say(error instanceof Refused ? t("Weight not set: {why}", { why: t(error.message) }) : t("Weight not set: can’t reach the server."));
    }
  });
  return input;
}

/**
 * @param {any} statistics
 * @param {boolean} owner
 */
function show(statistics, owner) {
  const figures = [figure(t("Labels"), number(statistics.labels), t("from all annotators"))];
  if (owner) {
    figures.push(figure(t("Krippendorff’s α"), number(statistics.alpha, 2), t(statistics.alpha_words ?? "")));
    const shared = { pairs: number(statistics.shared_pairs), chance: percent(statistics.chance_agreement) };
    const note = statistics.chance_agreement == null ? t("same answer on {pairs} shared pairs", shared) : t("same answer on {pairs} shared pairs; by chance {chance}", shared);
    figures.push(figure(t("Raw agreement"), percent(statistics.raw_agreement), note));
  }
  byId("figures").replaceChildren(...figures);
  /** @type {any[]} */
  const rows = statistics.annotators ?? [];
  const columns = COLUMNS.filter(({ optional }) => !optional || !rows.every(optional));
  // Explicit roles: on a narrow page CSS shows rows as lists, and browsers then drop the table semantics.
  const heads = columns.map(({ title, means }) => make("th", { scope: "col", role: "columnheader", title: means }, title));
  const [name, last] = [t("Name"), t("Weight")].map((title) => make("th", { scope: "col", role: "columnheader" }, title));
  byId("columns").replaceChildren(make("tr", { role: "row" }, name, ...heads, last));
  byId("people").replaceChildren(
    ...rows.map((row) => {
      const cells = columns.map(({ title, text, odd }) =>
        make("td", { role: "cell", "data-title": title, ...(odd?.(row) ? { class: "odd", title: t("check this value") } : {}) }, text(row)),
      );
      const weight = make("td", { role: "cell", "data-title": t("Weight") }, owner ? weightOf(row) : number(row.weight ?? 1, 2));
      const who = `${row.name ?? "?"}${row.weight === 0 ? ` (${t("excluded")})` : ""}`;
      return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, who), ...cells, weight);
    }),
  );
  const notes = columns.map(({ title, means }) => `${title}: ${means}.`).join(" ");
  const none = owner ? t("No answers yet.") : t("You have not answered yet.");
  const whose = owner ? "" : ` ${t("Only the owner (the first annotator) sees everyone's numbers.")}`;
  byId("notes").textContent = (rows.length ? `${notes} ${t("Check the values marked with !.")}` : none) + whose;
}

/** @param {import("./session.js").Me} me */
function begin(me) {
  document.title = `${t("Statistics")} · ${me.title}`;
  byId("work-statistics").hidden = false;
  const look = async () => {
    // Don't redraw while someone edits a weight.
    if (document.hidden || document.activeElement?.matches(".people input")) return;
    await call("GET", "api/statistics").then(
      (statistics) => show(statistics, me.owner),
      () => {}, // retried at the next poll
    );
  };
  look();
  setInterval(look, LOOK_EVERY_MS);
}

onEntrance(() => (byId("work-statistics").hidden = true));
enter(begin);
