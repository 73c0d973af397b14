/** The labelling page: what happens when somebody answers. @module */
import { call, Refused } from "./api.js";
import { byId, keep, kept, newId, say } from "./dom.js";
import { showEpisodes } from "./episode.js";
import { ACTIONS, Keys } from "./keys.js";
import { Outbox } from "./outbox.js";
import { Player } from "./player.js";
import { showProgress } from "./progress.js";
import { close, load, PAGE, Questions } from "./questions.js";
import { showRefused } from "./refused.js";
import { enter, onEntrance } from "./session.js";
import { swipes } from "./swipe.js";
import { Watch } from "./watch.js";

const UNDO_DEEP = 50;
const PROGRESS_EVERY_MS = 10000;
/**
 * A press sooner after a pair came into view was meant for the pair before, or for none: to see that there is something new and to
 * choose takes people more than 0.3 s, however quick they are.
 */
const TOO_SOON_MS = 250;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const pair = byId("pair");
const scrub = /** @type {HTMLInputElement} */ (byId("scrub"));
const canvases = [byId("left"), byId("right")].map((element) => /** @type {HTMLCanvasElement} */ (element));

const watch = new Watch();
const player = new Player(canvases, showPlayer);
const questions = new Questions(
  advance,
  showProgress,
  (text) => (byId("reason").textContent = text),
  () => outbox,
);
/**
 * This page's answers, the latest last; the server knows those of earlier pages. The last few keep their films.
 * @type {{id: string, showing: import("./questions.js").Showing, question: import("./questions.js").Question | null}[]}
 */
const given = [];
/** @type {Outbox} */
let outbox;
let whose = "";
let undoing = false;
/** Answers given on this page, but for those taken back. */
let answered = 0;
/** Whether the pair on screen was there before: it may be answered at once. */
let again = false;
/** Whether films play by themselves; whoever stops one pair does not want the next to play. */
let playing = !calm.matches;

/** @param {Player} shown */
function showPlayer(shown) {
  pair.dataset.playing = String(shown.playing);
  scrub.max = String(Math.max(1, shown.length - 1));
  scrub.value = String(Math.max(0, shown.frame));
  scrub.setAttribute("aria-valuetext", `frame ${shown.frame + 1} of ${shown.length}`);
  byId("frame").textContent = shown.length ? `${shown.frame + 1} / ${shown.length}` : "–";
  byId("speed").textContent = `${shown.speed}×`;
}

/** Put the current question on screen, or say that there is none. */
function show() {
  const question = questions.current;
  pair.dataset.state = question ? "asking" : "waiting";
  pair.dataset.lease = question?.showing.lease ?? "";
  for (const button of document.querySelectorAll("[data-answer]")) button.setAttribute("aria-disabled", String(!question));
  player.playing = playing;
  player.show(question?.films ?? [], question?.showing.fps ?? 1);
  watch.start();
  again = false;
  byId("next").textContent = question ? `Pair ${answered + 1}. A or B?` : "";
  if (question && !playing && calm.matches && !kept("told-of-less-motion", false)) {
    keep("told-of-less-motion", true);
    say("Clips are paused, as your system asks for less motion. Press play, or tap the clips.", 9);
  }
}

/** The next pair, at once. */
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
  if (!again && watch.read().view_ms < TOO_SOON_MS) {
    say("Too quick: that press did not count. This pair is new.", 2.5);
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
    close(older.question); // the browser's cache has its films still
    older.question = null;
  }
}

/** Take the latest answer back and show its pair again. */
async function undo() {
  if (undoing || !outbox) return; // nobody is signed in yet
  undoing = true;
  pair.dataset.busy = "true";
  try {
    const last = given.at(-1);
    if (last && outbox.takeBack(last.id)) {
      // The server has not seen it: the question is still ours.
      given.pop();
      questions.putBefore(last.question ?? (await load(last.showing)));
    } else {
      if (!(await outbox.empty())) {
        say("Undo needs the server, which can’t be reached now. Your answers are kept.");
        return;
      }
      const { question } = await call("POST", "api/undo", { event_id: newId(), target: last?.id ?? null, page: PAGE });
      given.pop();
      if (!question) {
        say("There is nothing to undo.");
        return;
      }
      questions.putBefore(await load(question));
    }
    answered = Math.max(0, answered - 1);
    show();
    again = true;
    say("Taken back: answer this pair again.", 2.5);
  } catch (error) {
    say(error instanceof Refused ? `Not undone: ${error.message}` : "Undo needs the server, which can’t be reached now.");
  } finally {
    undoing = false;
    delete pair.dataset.busy;
  }
}

/** Show which answer was taken. @param {string} answer */
function flash(answer) {
  const button = document.querySelector(`[data-answer="${answer}"]`);
  button?.classList.remove("taken");
  requestAnimationFrame(() => button?.classList.add("taken"));
}

/** Stop, or go on. */
function pause() {
  player.toggle();
  playing = player.playing;
}

/** @param {number} by */
function accelerate(by) {
  player.accelerate(by);
  if (player.speed > 1 && !kept("warned-of-flicker", false)) {
    keep("warned-of-flicker", true);
    say("Faster playback also makes flicker faster. If the clips flash, slow down: flashing can harm people with photosensitive epilepsy.", 9);
  }
}

/** @type {Record<string, () => void>} */
const actions = {
  undo,
  pause,
  restart: () => player.restart(),
  back: () => player.step(-1),
  forward: () => player.step(1),
  slower: () => accelerate(-1),
  faster: () => accelerate(1),
  help: () => /** @type {HTMLDialogElement} */ (byId("help")).showModal(),
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
  const saved = box.refused.length ? "Others saved" : "All saved";
  const text = { saved, saving: `Saving ${waiting} …`, offline: `Offline, ${waiting} kept here` }[state];
  clearTimeout(announcing);
  // Most answers are saved at once; to say so each time would flicker, and keep a screen reader talking.
  announcing = setTimeout(() => {
    badge.dataset.state = state;
    if (badge.textContent !== text) badge.textContent = text;
  }, state === "saving" ? 400 : 0);
  if (why) say(why);
  showRefused(box);
}

/** @param {{name: string, owner: boolean, title: string, instructions: string}} me */
function begin(me) {
  if (whose && whose !== me.name) location.reload(); // nothing of one person is left to the next
  whose = me.name;
  document.title = me.title ? `${me.title} · Which is better?` : "Which is better?";
  byId("title").textContent = me.title || "Which is better?";
  byId("name").textContent = me.name;
  byId("instructions").textContent = me.instructions || "Say which clip you would rather see more of.";
  byId("work").hidden = false;
  if (!outbox) {
    outbox = new Outbox(me.name, showSaved);
    showEpisodes(playing);
    // What others do shows too, while nobody answers here.
    setInterval(() => document.hidden || call("GET", "api/progress").then(showProgress, () => {}), PROGRESS_EVERY_MS);
  }
  questions.start();
}

new Keys(act);
show();
document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button") : null;
  // A mouse leaves no focus behind, or the space bar would press the button again instead of pausing.
  if (event.detail > 0 && document.activeElement instanceof HTMLElement && !document.querySelector("dialog[open]")) document.activeElement.blur();
  if (button?.dataset.answer) respond(button.dataset.answer, null);
  else if (button?.dataset.action) act(button.dataset.action, null);
});
scrub.addEventListener("input", () => player.seek(Number(scrub.value)));
scrub.addEventListener("pointerup", () => scrub.blur());
calm.addEventListener("change", () => {
  playing = player.playing = !calm.matches;
  showPlayer(player);
});
// Instructions too long for the place above the clips are cut off there, and shown whole where somebody asks.
const [instructions, more] = [byId("instructions"), byId("more")];
new ResizeObserver(() => {
  if (instructions.classList.contains("whole")) return;
  more.hidden = true; // it takes room that they may fit into
  more.hidden = instructions.scrollHeight <= instructions.clientHeight + 1;
}).observe(instructions);
more.addEventListener("click", () => {
  const whole = instructions.classList.toggle("whole");
  more.setAttribute("aria-expanded", String(whole));
  more.textContent = whole ? "Less" : "More";
});
swipes(/** @type {HTMLElement} */ (pair.querySelector(".panes")), {
  onDrag: (side) => {
    byId("drag").hidden = !side || !questions.current;
    byId("drag").textContent = side === "left" ? "← A is better" : "B is better →";
  },
  onSwipe: (side) => respond(side, null),
  onTap: () => questions.current && pause(),
});
onEntrance(() => {
  byId("work").hidden = true;
  questions.stop();
});
enter(begin);
