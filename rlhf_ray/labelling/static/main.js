/** The labelling page: handles answers, undo and playback. @module */
import { call, Refused } from "./api.js";
import { byId, keep, kept, newId, say } from "./dom.js";
import { showEpisodes } from "./episode.js";
import { ACTIONS, Keys } from "./keys.js";
import { Outbox } from "./outbox.js";
import { flash, onPress, Playback } from "./playback.js";
import { showProgress } from "./progress.js";
import { close, load, PAGE, Questions } from "./questions.js";
import { showRefused } from "./refused.js";
import { enter, onEntrance } from "./session.js";
import { swipes } from "./swipe.js";
import { t } from "./text.js";
import { Watch } from "./watch.js";

const UNDO_DEEP = 50;
const PROGRESS_EVERY_MS = 10000;
const pair = byId("pair");

const watch = new Watch();
const playback = new Playback();
const { player } = playback;
const questions = new Questions(
  advance,
  showProgress,
  (text) => (byId("reason").textContent = text),
  showOver,
  () => outbox,
);
/**
 * Answers given on this page, oldest first; the server knows those of earlier pages. The last few keep their films.
 * @type {{id: string, showing: import("./questions.js").Showing, question: import("./questions.js").Question | null}[]}
 */
const given = [];
/** @type {Outbox} */
let outbox;
let title = document.title;
let undoing = false;
/** Number of answers given on this page and not undone. */
let answered = 0;

/**
 * Show the current question, or the waiting state if there is none.
 * @param {boolean} [again] whether it was shown before (undo)
 */
function show(again = false) {
  const question = questions.current;
  pair.dataset.state = question ? "asking" : "waiting";
  pair.dataset.lease = question?.showing.lease ?? "";
  for (const button of document.querySelectorAll("[data-answer]")) button.setAttribute("aria-disabled", String(!question));
  playback.show(question?.films ?? [], question?.showing.fps ?? 1);
  watch.start(Boolean(question), again);
  byId("next").textContent = question ? t("Pair {number}. A or B?", { number: answered + 1 }) : "";
  if (question && !playback.playing && playback.calm.matches && !kept("told-of-less-motion", false)) {
    keep("told-of-less-motion", true);
    say(t("Clips are paused because your system requests reduced motion. Press play or tap the clips."), 9);
  }
}

/**
 * Labelling is over: say so, in the tab too, which may be in the background.
 * @param {string} text
 * @param {boolean} ended whether the server is about to close: nothing that needs it is shown any more
 */
function showOver(text, ended) {
  pair.dataset.over = String(Boolean(text));
  document.body.dataset.ended = String(ended);
  if (ended) dispatchEvent(new Event("ended"));
  byId("reason").textContent = text;
  document.title = (text ? "✓ " : "") + title;
}

/** Show the next pair immediately. */
function advance() {
  questions.advance();
  show();
}

/**
 * @param {string} answer
 * @param {string | null} key
 */
function respond(answer, key) {
  const question = questions.current;
  if (!question || undoing) return;
  if (!watch.takes()) {
    say(t("Too fast: that answer was ignored. This is a new pair."), 2.5);
    return;
  }
  const [loops_left, loops_right] = player.loops;
  const id = newId();
  outbox.add({ event_id: id, lease: question.showing.lease, answer, ...watch.read(), loops_left, loops_right, key });
  given.push({ id, showing: question.showing, question });
  if (given.length > UNDO_DEEP) given.shift();
  answered += 1;
  flash(answer);
  advance();
  const older = given[given.length - 4];
  if (older?.question) {
    close(older.question); // its films are still in the browser's cache
    older.question = null;
  }
}

/** Undo the latest answer and show its pair again. */
async function undo() {
  if (undoing || !outbox) return; // not signed in yet
  if (document.body.dataset.ended === "true") {
    say(t("Can’t undo: {why}", { why: byId("reason").textContent ?? "" }));
    return;
  }
  undoing = true;
  pair.dataset.busy = "true";
  try {
    const last = given.at(-1);
    if (last && outbox.takeBack(last.id)) {
      // Never sent: this page still holds the question.
      given.pop();
      questions.putBefore(last.question ?? (await load(last.showing)));
    } else {
      if (!(await outbox.empty())) {
        say(t("Can’t undo: the server is unreachable. Your answers are kept."));
        return;
      }
      const { question } = await call("POST", "api/undo", { event_id: newId(), target: last?.id ?? null, page: PAGE });
      given.pop();
      if (!question) {
        say(t("Nothing to undo."));
        return;
      }
      questions.putBefore(await load(question));
    }
    answered = Math.max(0, answered - 1);
    show(true);
    say(t("Undone. Answer this pair again."), 2.5);
  } catch (error) {
    say(error instanceof Refused ? t("Can’t undo: {why}", { why: t(error.message) }) : t("Can’t undo: the server is unreachable."));
  } finally {
    undoing = false;
    delete pair.dataset.busy;
  }
}

/** @type {Record<string, () => void>} */
const actions = {
  undo,
  ...playback.actions,
  refused: () => /** @type {HTMLDialogElement} */ (byId("refused")).showModal(),
};

/**
 * @param {string} action
 * @param {string | null} key
 */
function act(action, key) {
  if (actions[action]) actions[action]();
  else if (action in ACTIONS) respond(action, key);
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let announcing;

/**
 * @param {import("./outbox.js").State} state
 * @param {number} waiting
 * @param {string} why
 * @param {Outbox} box
 */
function showSaved(state, waiting, why, box) {
  const badge = byId("saved");
  badge.dataset.waiting = String(waiting);
  const saved = box.refused.length ? t("Others saved") : t("All saved");
  const text = { saved, saving: t("Saving {count} …", { count: waiting }), offline: t("Offline, {count} queued", { count: waiting }) }[state];
  clearTimeout(announcing);
  // Most answers are saved at once. Showing "Saving" each time would flicker and keep a screen reader talking.
  announcing = setTimeout(() => {
    badge.dataset.state = state;
    if (badge.textContent !== text) badge.textContent = text;
  }, state === "saving" ? 400 : 0);
  if (why) say(why);
  showRefused(box);
}

/** @param {import("./session.js").Me} me */
function begin(me) {
  document.title = title = (me.title ? `${me.title} · ` : "") + t("Which is better?");
  byId("title").textContent = me.title || t("Which is better?");
  byId("name").textContent = me.name;
  byId("instructions").textContent = me.instructions || t("Choose the clip you would rather see more of.");
  byId("work").hidden = false;
  if (!outbox) {
    outbox = new Outbox(me.name, showSaved);
    showEpisodes(playback.playing);
    // Show the others' progress too while this page is idle.
    setInterval(() => document.hidden || call("GET", "api/progress").then(showProgress, () => {}), PROGRESS_EVERY_MS);
  }
  questions.start();
}

new Keys(act, Object.keys(ACTIONS).filter((action) => action !== "keep"));
onPress(act);
show();
// Instructions too long for the space above the clips are truncated; "More" shows them in full.
const [instructions, more] = [byId("instructions"), byId("more")];
new ResizeObserver(() => {
  if (instructions.classList.contains("whole")) return;
  more.hidden = true; // the button takes space that the text may need
  more.hidden = instructions.scrollHeight <= instructions.clientHeight + 1;
}).observe(instructions);
more.addEventListener("click", () => {
  const whole = instructions.classList.toggle("whole");
  more.setAttribute("aria-expanded", String(whole));
  more.textContent = whole ? t("Less") : t("More");
});
swipes(/** @type {HTMLElement} */ (pair.querySelector(".panes")), {
  onDrag: (side) => {
    byId("drag").hidden = !side || !questions.current;
    byId("drag").textContent = side === "left" ? `← ${t("A is better")}` : `${t("B is better")} →`;
  },
  onSwipe: (side) => respond(side, null),
  onTap: () => questions.current && playback.actions.pause(),
});
onEntrance(() => {
  byId("work").hidden = true;
  questions.stop();
});
enter(begin);
