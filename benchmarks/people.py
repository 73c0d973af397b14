"""People at the page: what an agent reaches from 150 labels that somebody gives in a browser, one a second, a tenth of them wrong.

For each seed, `rlhf-ray train pendulum --teacher human` trains while Chromium, driven by a script, looks at the page and presses
arrow keys: it finds the shown clips' true returns in the run's store and prefers the larger, but for a tenth of the answers, which
it turns round. Beside it, the same settings with the scripted teacher (asynchronous, at once and never wrong), and, as the run's
own last line, random actions. Normalised is (people - random) / (scripted - random).

    python benchmarks/people.py --seeds 0 1 2      # 20 minutes on an idle machine; writes benchmarks/results/people_pendulum.json

Needs Chromium, or a browser of Playwright's (`playwright install chromium`).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Response, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.store import PreferenceStore

KEYS = {"left": "ArrowLeft", "right": "ArrowRight", "equal": "ArrowDown"}


def command(folder: Path, seed: int, settings: list[str]) -> list[str]:
    """`rlhf-ray train`, as both arms run it."""
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    fixed = ["--seed", str(seed), "--run-dir", str(folder), "--evaluation-episodes", "100"]
    return [program, "train", "pendulum", *fixed, *settings]


class Person:
    """Looks at the page and presses keys."""

    def __init__(self, page: Page, store: Path, mistakes: float, seed: int):
        self.page, self.store, self.mistakes = page, store, mistakes
        self.random = random.Random(seed)
        self.films: dict[str, tuple[str, str]] = {}
        self.labels = 0
        page.on("response", self.note)

    def note(self, response: Response) -> None:
        """Remember which clips a question is about."""
        if response.url.endswith(("/api/questions", "/api/undo")) and response.ok:
            body = response.json()
            for question in body.get("questions", [body.get("question")]):
                if question:
                    self.films[question["lease"]] = (question["left"]["id"], question["right"]["id"])

    def look(self) -> bool:
        """Answer what is shown, if anything is."""
        lease = self.page.locator("#pair").get_attribute("data-lease")
        if not lease or lease not in self.films:
            return False
        _, clips = PreferenceStore(self.store, create=False).clips(self.films[lease])
        assert clips is not None
        left, right = clips.returns()[[0, -1]]  # one clip only, where it is shown beside itself
        answer = "equal" if left == right else "left" if left > right else "right"
        if answer != "equal" and self.random.random() < self.mistakes:
            answer = {"left": "right", "right": "left"}[answer]
        self.page.keyboard.press(KEYS[answer])
        self.labels += 1
        return True


def people(folder: Path, seed: int, settings: list[str], rate: float, mistakes: float) -> int:
    """A run with a person in a browser; how many labels they gave."""
    with (folder.parent / f"{folder.name}.log").open("w+") as log, sync_playwright() as playwright:
        arguments = [*settings, "--teacher", "human", "--labelling.port", "0"]
        process = subprocess.Popen(command(folder, seed, arguments), stdout=log, stderr=subprocess.STDOUT)
        while not (links := re.findall(r"http://\S+#\S+", Path(log.name).read_text())):
            time.sleep(0.2)
            if process.poll() is not None:
                raise RuntimeError(f"the run ended: {log.name}")
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        person = Person(page, folder / "preferences", mistakes, seed)
        page.goto(links[0])
        while process.poll() is None:
            began = time.monotonic()
            try:
                shown = person.look()
            except Exception as error:  # the server ends with the training
                if process.poll() is None:
                    print(f"seed {seed}: {error}", file=sys.stderr)
                shown = True
            page.wait_for_timeout(1e3 * max(0.05, (1 / rate if shown else 0.2) - (time.monotonic() - began)))
        browser.close()
        return person.labels


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=1.0, help="labels per second")
    parser.add_argument("--mistakes", type=float, default=0.1, help="share of answers that are turned round")
    parser.add_argument("--runs", type=Path, default=Path("runs/people"), help="where the run folders go")
    options = parser.parse_args()
    settings = ["--total-env-steps", "200000"]  # PPO waits for nobody: time for 150 labels at one a second
    settings += ["--preferences.comparisons", "150", "--preferences.initial-comparisons", "40"]
    options.runs.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        folder, scripted = options.runs / f"people{seed}", options.runs / f"scripted{seed}"
        pressed = people(folder, seed, settings, options.rate, options.mistakes)
        quick = [*settings, "--preferences.mode", "asynchronous"]
        subprocess.run(command(scripted, seed, quick), check=True, stdout=subprocess.DEVNULL)
        results = [json.loads(RunFolder(of).result.read_text()) for of in (folder, scripted)]
        low, high = results[0]["random"]["true_return_mean"], results[1]["trained"]["true_return_mean"]
        reached = results[0]["trained"]["true_return_mean"]
        row = {
            "seed": seed,
            "people": reached,
            "scripted": high,
            "random": low,
            "normalised": (reached - low) / (high - low),
            "labels": results[0]["comparisons"],
            "scripted_labels": results[1]["comparisons"],
            "keys_pressed": pressed,
            "train_seconds": results[0]["train_seconds"],
            "scripted_train_seconds": results[1]["train_seconds"],
        }
        rows.append(row)
        print(json.dumps(row))
    outcome = {
        "settings": settings,
        "labels_per_second": options.rate,
        "mistakes": options.mistakes,
        "runs": rows,
    }
    record("people_pendulum", outcome)


if __name__ == "__main__":
    main()
