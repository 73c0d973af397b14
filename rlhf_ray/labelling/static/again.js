/** Answers that are more likely wrong than right: the owner looks at the clips again, and keeps the answer or changes it. @module */
import { ANSWERS } from "./answers.js";
import { call, Refused } from "./api.js";
import { byId, newId, say } from "./dom.js";
import { ACTIONS, Keys } from "./keys.js";
import { flash, onPress, Playback } from "./playback.js";
import { close, load } from "./questions.js";
import { enter, onEntrance } from "./session.js";
import { swipes } from "./swipe.js";
import { t } from "./text.js";
import { Watch } from "./watch.js";

/**
 * @typedef {object} Doubt
 * @property {string} event_id
 * @property {string} annotator
 * @property {string} answer
 * @property {number} chance
 * @property {boolean} [seen] whether it was looked at before, on this page
 * @property {import("./player.js").FilmInfo} left
 * @property {import("./player.js").FilmInfo} right
 * @property {number} fps
 */

const LOOK_EVERY_MS = 10000;
const UNUSED = ANSWERS.filter(({ preference }) => preference === null).map(({ name }) => name);
/** @type {Record<string, string>} */
const SAID = Object.fromEntries(ANSWERS.filter(({ preference }) => preference !== null).map(({ name, text }) => [name, t(text)]));
const ANSWERED = t("{name} answered “{answer}”, which is wrong with a probability of {chance}. {count} to look at.");
const SEEN = t("You left it at “{answer}”. {count} to look at.");
const pair = byId("pair");
const playback = new Playback();
const watch = new Watch();

/** Those to come, the one on screen first. @type {Doubt[]} */
let doubts = [];
/** Those looked at on this page, with the events that replaced their answers. @type {Doubt[]} */
const done = [];
/** @type {import("./questions.js").Question | null} */
let shown = null;
let busy = false;
let signedIn = false;

/** Show the first of `doubts`, or that there is none. */
async function show() {
  busy = true;
  const before = shown;
  shown = null;
  while (doubts.length && !shown) {
    try {
      shown = await load({ ...doubts[0], lease: doubts[0].event_id, expires_in: 0 });
    } catch (error) {
      if (!(error instanceof Refused) || error.passing) {
        say(t("Can’t reach the server; retrying."));
        break;
      }
      doubts.shift();
      say(t("Can’t show a clip: {why}", { why: t(error.message) }));
    }
  }
  busy = false;
  const doubt = shown && doubts[0];
  pair.dataset.state = doubt ? "asking" : "waiting";
  pair.dataset.over = String(!doubts.length);
  pair.dataset.lease = doubt?.event_id ?? "";
  playback.show(shown?.films ?? [], doubt?.fps ?? 1);
  watch.start(Boolean(doubt));
  if (before) close(before);
  for (const button of document.querySelectorAll("[data-answer], [data-action=keep]")) {
    button.setAttribute("aria-disabled", String(!doubt));
    button.classList.toggle("given", button instanceof HTMLElement && button.dataset.answer === doubt?.answer);
  }
  byId("reason").textContent = doubts.length ? t("Loading the next clips …") : t("No answers to look at again.");
  byId("before").textContent = doubt
    ? t(doubt.seen ? SEEN : ANSWERED, {
        name: doubt.annotator,
        answer: SAID[doubt.answer],
        chance: `${Math.round(100 * doubt.chance)} %`,
        count: doubts.length,
      })
    : "";
}

/** Fetch the list, unless a pair is on screen. */
async function look() {
  if (!signedIn || busy || shown || document.hidden) return;
  busy = true;
  try {
    doubts = (await call("GET", "api/doubts")).doubts;
    await show();
  } catch (error) {
    byId("reason").textContent = error instanceof Refused ? t(error.message) : t("Can’t reach the server; retrying.");
  } finally {
    busy = false;
  }
}

/** Store the answer to the pair on screen, and show the next. @param {string} answer */
async function respond(answer) {
  const doubt = doubts[0];
  if (!shown || busy) return;
  if (!watch.takes()) {
    say(t("Too fast: that answer was ignored. This is a new pair."), 2.5);
    return;
  }
  busy = true;
  const id = newId();
  flash(answer);
  try {
    await call("POST", "api/reviews", { event_id: id, target: doubt.event_id, answer });
    done.push({ ...doubt, event_id: id, answer, seen: true });
    doubts.shift();
  } catch (error) {
    if (!(error instanceof Refused)) say(t("Can’t reach the server; press again."));
    else say(t("Not saved: {why}", { why: t(error.message) }));
    if (!(error instanceof Refused) || error.passing) {
      busy = false;
      return;
    }
    doubts.shift(); // taken back or replaced meanwhile
  }
  await show();
}

/** Show the last one again. */
async function undo() {
  if (busy) return;
  const last = done.pop();
  if (!last) {
    say(t("Nothing to undo."));
    return;
  }
  doubts.unshift(last);
  await show();
}

/** @type {Record<string, () => void>} */
const actions = { undo, ...playback.actions, keep: () => void (doubts[0] && respond(doubts[0].answer)) };

/** @param {string} action */
function act(action) {
  if (actions[action]) actions[action]();
  else if (action in SAID) respond(action);
}

/** @param {import("./session.js").Me} me */
function begin(me) {
  document.title = `${t("Answers to look at again")} · ${me.title}`;
  byId("title").textContent = t("Answers to look at again");
  byId("name").textContent = me.name;
  byId("instructions").textContent = me.instructions || t("Choose the clip you would rather see more of.");
  byId("work").hidden = false;
  signedIn = true;
  look();
}

for (const id of ["saved", "agent", "progress"]) byId(id).hidden = true;
for (const answer of UNUSED) document.querySelector(`[data-answer=${answer}]`)?.setAttribute("hidden", "");
document.querySelector("[data-action=keep]")?.removeAttribute("hidden");
byId("back").hidden = byId("before").hidden = false;
document.body.dataset.page = "again";
new Keys(act, Object.keys(ACTIONS).filter((action) => !UNUSED.includes(action)));
onPress(act);
swipes(/** @type {HTMLElement} */ (pair.querySelector(".panes")), {
  onDrag: (side) => {
    byId("drag").hidden = !side || !shown;
    byId("drag").textContent = side === "left" ? `← ${t("A is better")}` : `${t("B is better")} →`;
  },
  onSwipe: (side) => respond(side),
  onTap: () => shown && playback.actions.pause(),
});
onEntrance(() => {
  byId("work").hidden = true;
  signedIn = false;
});
setInterval(look, LOOK_EVERY_MS);
enter(begin);
