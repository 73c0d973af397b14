"""Somebody at the page who errs as people do: what `rlhf-ray train pendulum_people` reaches with them.

Chromium, driven by a script, looks at the labelling page and presses keys. It answers as the teacher `human_like` does: it skips a
pair ("can't compare") and errs the more often, the closer the clips' true returns are. These it looks up in the run's preference
store, by the ids of the clips on screen; answers go through the page alone. An answer takes 1.5 s in the median (log-normal). Once
the person is away for a minute, once they reload the page, right after a key press; later they open their statistics.

Normalised returns are means over the last five iterations' training returns; 0: random actions (-1175), 1: PPO on the true reward
(-160). Also recorded: the greedy policy's return in 100 episodes, the share of wrong labels and the run's estimate of it, and how
many key presses are stored.

    python benchmarks/browser_person.py --seeds 3000 3001 3002    # half an hour on 2 cores

Writes benchmarks/results/browser_person.json. Needs Chromium, or a browser of Playwright's (`playwright install chromium`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Error, Page, Response, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.data.comparisons import Pairs, differences, spread_of
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.measure.error_rates import newest_rates
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers.annotators import HumanLike

RANDOM, TRUE_REWARD = -1175.0, -160.0
"""Returns of random actions, and of PPO on the true reward."""
SPREAD_OF_SECONDS = 0.5
"""Standard deviation of the logarithm of the seconds per answer."""
RELOAD_AFTER, AWAY_AFTER, STATISTICS_AFTER = 40, 100, 155
"""Key presses before the reload and before the minute away; labels before the look at the statistics: the training has begun."""
SCREEN = "() => { const { state, lease } = document.querySelector('#pair').dataset; return state === 'asking' ? lease : ''; }"


class Person:
    """Looks at the page and presses keys."""

    def __init__(self, browser: Browser, link: str, store: Path, seed: int, seconds: float, away: float):
        self.seconds, self.away = seconds, away
        self.random, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.store = PreferenceStore(store, create=False)
        self.teacher = HumanLike()
        self.films: dict[str, tuple[str, str]] = {}
        """The clips of each lease, as shown."""
        self.returns: dict[str, float] = {}
        """True returns of the clips that came to the page."""
        self.pressed = self.ignored = 0
        self.troubles: list[str] = []
        self.idle = 0.0
        """Seconds without a pair on screen."""
        self.said: dict[str, str] = {}
        """The person's row on the statistics page."""
        self.page: Page = browser.new_context().new_page()
        self.page.on("response", self.note)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.goto(link)

    def note(self, response: Response) -> None:
        """Remember which clips a question is about."""
        if not response.url.endswith("/api/questions") or not response.ok:
            return
        try:
            questions = response.json()["questions"]
        except Error:  # the page was reloaded; it asks again
            return
        for question in questions:
            self.films[question["lease"]] = (question["left"]["id"], question["right"]["id"])

    def clips(self, names: tuple[str, str]) -> Fragments:
        """The two clips, from the store; one, if it is shown beside itself."""
        _, clips = self.store.fragments(names)
        assert clips is not None
        self.returns |= dict(zip(clips.ids(), clips.returns().tolist(), strict=True))
        return clips

    def key(self, lease: str) -> str:
        """The key for the answer to the pair on screen."""
        if len(set(self.films[lease])) == 1:
            return "ArrowDown"
        for names in self.films.values():  # those to come, too: they tell how far apart clips are
            if not self.returns.keys() >= set(names):
                self.clips(names)
        clips = self.clips(self.films[lease])
        left, right = np.array([0]), np.array([1])
        spread = spread_of(np.array([*self.returns.values()]))
        said = self.teacher.answer(Pairs(clips[left], clips[right], ("",), recent_spread=spread), self.rng)[0]
        return "x" if math.isnan(said) else "ArrowLeft" if said == 1 else "ArrowRight"

    def look(self) -> None:
        """Answer what is shown, if anything is; on the way, the interruptions."""
        lease = self.page.evaluate(SCREEN)
        if lease not in self.films:
            began = time.monotonic()
            self.page.wait_for_timeout(100)
            self.idle += time.monotonic() - began
            return
        self.page.wait_for_timeout(
            1e3 * max(0.3, self.random.lognormvariate(math.log(self.seconds), SPREAD_OF_SECONDS))
        )
        if self.page.evaluate(SCREEN) != lease:  # it was taken away
            return
        self.page.keyboard.press(self.key(lease))
        if self.page.evaluate(SCREEN) == lease:
            self.ignored += 1
            return
        self.pressed += 1
        if self.pressed == RELOAD_AFTER:
            self.page.reload()
        if self.pressed == AWAY_AFTER:
            self.page.wait_for_timeout(1e3 * self.away)
        if not self.said and len(self.store) >= STATISTICS_AFTER:
            page = self.page.context.new_page()
            page.goto(self.page.url.split("#")[0] + "statistics")
            page.wait_for_selector("#people td")
            columns, row = page.locator("#columns th").all_inner_texts(), page.locator("#people tr").first
            self.said = dict(zip(columns, row.locator("th, td").all_inner_texts(), strict=True))
            page.close()


def label(folder: Path, seed: int, seconds: float, away: float) -> Person:
    """Train with somebody in a browser; returns them."""
    log = folder.parent / f"{folder.name}.log"
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    command = [program, "train", "pendulum_people", "--seed", str(seed), "--run-dir", str(folder)]
    command += ["--evaluation-episodes", "100", "--labelling.port", "0"]
    with log.open("w") as out, sync_playwright() as playwright:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while not (links := re.findall(r"http://\S+#\S+", log.read_text())):
            time.sleep(0.2)
            if process.poll() is not None:
                raise RuntimeError(f"the run ended: {log}")
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        person = Person(browser, links[0], folder / "preferences", seed, seconds, away)
        while process.poll() is None:
            try:
                person.look()
            except Error as error:
                person.troubles.append(str(error))
                time.sleep(0.5)
        browser.close()
    if process.returncode:
        raise RuntimeError(f"the run failed: {log}")
    return person


def wrong_share(store: PreferenceStore) -> float:
    """The share of the labels that contradict the true returns."""
    labels = store.load()
    assert labels is not None
    better = differences(labels.pairs.left.rewards, labels.pairs.right.rewards)
    decided = (labels.preferences != 0.5) & (better != 0)
    return float(((better > 0) != (labels.preferences > 0.5))[decided].mean())


def run(folder: Path, seed: int, seconds: float, away: float) -> dict[str, Any]:
    """One run's figures."""
    person = label(folder, seed, seconds, away)
    of = RunFolder(folder)
    result, rows = json.loads(of.result.read_text()), of.rows()
    trained = [row["true_return_mean"] for row in rows if row.get("true_return_mean") is not None]
    reached = statistics.mean(trained[-5:])
    evaluated = result["trained"]["true_return_mean"]
    events = person.store.events().to_pylist()
    labels = [row for row in events if row["kind"] == "label"]
    first = [row["t_answered"] for row in labels][: of.experiment().preferences.first_comparisons]
    rate, _ = newest_rates(rows)
    return {
        "seed": seed,
        "return": reached,
        "normalised": (reached - RANDOM) / (TRUE_REWARD - RANDOM),
        "evaluated": evaluated,
        "evaluated_normalised": (evaluated - RANDOM) / (TRUE_REWARD - RANDOM),
        "labels": result["comparisons"],
        "skipped": result["skipped"],
        "catch_pairs": sum(row["kind"] == "check" for row in events),
        "wrong_share": wrong_share(person.store),
        "estimated": None if rate is None else {"rate": rate.rate, "low": rate.low, "high": rate.high},
        "statistics_page": person.said,
        "keys_pressed": person.pressed,
        "keys_ignored": person.ignored,
        "answers_stored": len({row["event_id"] for row in events}),
        "pairs_labelled_twice": len(labels) - len({row["pair_id"] for row in labels}),
        "seconds_per_answer": statistics.median(row["view_ms"] for row in events if row["view_ms"]) / 1e3,
        "minutes_to_first_fit": (first[-1] - first[0]).total_seconds() / 60,
        "seconds_without_a_pair": person.idle,
        "troubles": person.troubles,
        "train_seconds": result["train_seconds"],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3000, 3001, 3002])
    parser.add_argument("--seconds", type=float, default=1.5, help="median seconds per answer")
    parser.add_argument("--away", type=float, default=60.0, help="seconds of the pause")
    parser.add_argument("--runs", type=Path, default=Path("runs/browser_person"), help="where the run folders go")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        rows.append(run(options.runs / str(seed), seed, options.seconds, options.away))
        print(json.dumps(rows[-1]), flush=True)
        record("browser_person", {"seconds": options.seconds, "away_seconds": options.away, "runs": rows})


if __name__ == "__main__":
    main()
