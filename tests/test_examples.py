"""The examples: short, and run as a user would run them, from a folder of their own. What they print has to be true."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import rlhf_ray as rr
from rlhf_ray.store import PreferenceStore
from tests.labelling.person import Person
from tests.whole_runs import with_path

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.py"))
MOST_LINES = {"method.py": 300}
"""60 for each other."""
SERVERS = ("machine_server.py", "serve_labelling.py")
"""They end at Ctrl-C; the first is tested with what it answers to, `tests/queries/test_machine.py`."""
WITHIN_S = 800.0
NUMBER = r"(-?\d+(?:\.\d+)?)"


def test_there_is_a_table_of_all_examples() -> None:
    table = (EXAMPLES / "README.md").read_text()
    assert re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", table, re.MULTILINE) == [*CHECKS, *SERVERS]
    assert sorted([*CHECKS, *SERVERS]) == FILES


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) <= MOST_LINES.get(name, 60)
    doc = compile(text, name, "exec").co_consts[0]
    assert isinstance(doc, str)
    assert f"    python examples/{name}" in doc
    assert "pip install" in doc
    assert re.search(r"\b(minutes?|seconds)\b", doc)
    assert not re.search(r"^(from|import) (tests|benchmarks|examples)\b", text, re.MULTILINE)


def numbers(pattern: str, output: str) -> list[float]:
    """The numbers where ``pattern`` has N, in the last place that it fits."""
    found = re.findall(pattern.replace("N", NUMBER), output)
    assert found, output
    last = found[-1]
    return [float(number) for number in (last if isinstance(last, tuple) else (last,))]


def rises(pattern: str, *, to: float, by: float) -> Callable[[str], None]:
    """A check that the second number is ``by`` more than the first and reaches ``to``."""

    def check(output: str) -> None:
        first, last = numbers(pattern, output)
        assert last > first + by, output
        assert last > to, output

    return check


def check_network(output: str) -> None:
    rises("true return: N in the first iteration, N in the last", to=-900.0, by=200.0)(output)
    angle, speed, torque = numbers(r"learned reward: N θ² N ω² N u²".replace(" N", r" \+?N"), output)
    assert angle < 0.0
    assert abs(angle) > max(abs(speed), abs(torque))


def check_offline(output: str) -> None:
    assert numbers("N comparisons, N of them held out", output)[0] == 300
    assert numbers("held-out accuracy: N", output)[0] > 0.85
    assert numbers("correlation with the true reward: N", output)[0] > 0.75


def check_tune(output: str) -> None:
    trials = re.findall(rf"{NUMBER} comparisons, {NUMBER} steps: true return {NUMBER}", output)
    assert [trial[0] for trial in trials] == ["10", "100"]
    assert all(58_400 < float(steps) <= 60_000 for _, steps, _ in trials), output  # by an iteration of 1,600, at most
    few, many = (float(true_return) for *_, true_return in trials)
    assert few < -1000.0 < -600.0 < many, output


def check_examined(output: str) -> None:
    assert re.search(r"sole cause|depends on cos\(angle\)", output)
    assert re.search(r"It ignores [^.:]*angular velocity", output)


def check_agent_examined(output: str) -> None:
    assert numbers(r"without the cue in its memory, the return changes by N .*: needed", output)[0] < -3.0
    assert abs(numbers(r"without the x in its memory, the return changes by N .*: not needed", output)[0]) < 0.5


def check_step(output: str) -> None:
    assert abs(numbers("It is exactly 0 on N% of the steps", output)[0] - 50.0) < 5.0


def check_attribution(output: str) -> None:
    checks = re.findall(r"^(.+?) \| – \| – \| – \| (\S+) \| \S+ \| passed$", output, re.MULTILINE)
    assert [name for name, _ in checks] == ["Mirror", "Occlusion (donor)"], output
    assert all(float(agreement) > 0.9 for _, agreement in checks)


def check_filmed(output: str) -> None:
    assert numbers("N answers from films", output) == [20.0]


def check_method(output: str) -> None:
    assert numbers("true return after learning: N", output)[0] > -500.0


CHECKS: dict[str, Callable[[str], None]] = {
    "method.py": check_method,
    "sb3_ppo.py": rises("true return: N before training, N after it", to=-900.0, by=200.0),
    "sb3_sac.py": rises("true return: N in the first 5 episodes, N in the last 5", to=-700.0, by=300.0),
    "cleanrl_vector.py": rises(r"\d+ steps: true return N\n[^$]*steps: true return N", to=-900.0, by=200.0),
    "own_environment.py": rises("true return: N in the first iteration, N in the last", to=-40.0, by=20.0),
    "own_teacher.py": rises("speed .rad/s.: N in the first iteration, N in the last", to=4.5, by=1.0),
    "own_gatherer.py": check_filmed,
    "own_network.py": check_network,
    "offline_from_store.py": check_offline,
    "examine_reward.py": check_examined,
    "examine_agent.py": check_agent_examined,
    "own_step.py": check_step,
    "own_attribution.py": check_attribution,
    "tune_from_python.py": check_tune,
    "people_over_a_tunnel.py": rises("true return: N in the first iteration, N in the last", to=-1000.0, by=150.0),
}
"""What each example's output has to hold."""


@contextmanager
def started(name: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An example in a process of its own that knows the package as it is installed. Its errors are in the file ``errors``."""
    environment = with_path() | {"TMPDIR": str(folder)}  # for what it leaves there
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *options],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A user's own. Its name is short, since Ray's sockets may lie below it."""
    with tempfile.TemporaryDirectory(prefix="ex", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "people_over_a_tunnel.py"])
def test_an_example_does_what_it_says(name: str, folder: Path) -> None:
    with started(name, folder) as process:
        output, _ = process.communicate(timeout=WITHIN_S)
        print(output)
        assert process.returncode == 0, (folder / "errors").read_text()
    CHECKS[name](output)


@pytest.mark.soak
@pytest.mark.ray
def test_people_teach_over_a_tunnel(folder: Path) -> None:
    with started("people_over_a_tunnel.py", folder) as process:
        lines = iter(process.stdout)
        command, link = (next(line for line in lines if f" {of}" in line) for of in ("ssh -N -L", "http://"))
        found = re.search(r"http://127\.0\.0\.1:(\d+)/#token=\S+", link)
        assert f"-L {found[1]}:127.0.0.1:{found[1]} " in command
        person = Person(found[0], folder / "people" / "preferences")
        person.start(lambda: process.poll() is not None)
        output = "".join(lines)
        print(output)
        assert process.wait(WITHIN_S) == 0, (folder / "errors").read_text()
    CHECKS["people_over_a_tunnel.py"](output)
    events = PreferenceStore(folder / "people" / "preferences", create=False).events()["event_id"].to_pylist()
    assert set(person.acknowledged) <= set(events)
    assert len(person.acknowledged) >= 60


@pytest.mark.soak
@pytest.mark.ray
def test_people_label_behind_ray_serve(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started("serve_labelling.py", folder, "store", "--port", str(port)) as process:
        link = next((found.group() for line in process.stdout if (found := re.search(r"http://\S+#\S+", line))), None)
        assert link is not None, (folder / "errors").read_text()
        person = Person(link, folder / "store")
        person.label(lambda: len(person.acknowledged) == 5)
        assert person.client.get("/").headers["content-security-policy"].startswith("default-src")
        stored = PreferenceStore(folder / "store", create=False).events()["event_id"].to_pylist()
        assert set(person.acknowledged) <= set(stored)


FILE = Path(__file__).parents[1] / "examples" / "method.py"
SEEDS = range(5)


def method() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("method_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_the_budget_and_settings_of_the_preset() -> None:
    of, preset = method(), rr.preset("pendulum")
    ppo, reward, preferences = preset.ppo, preset.reward_model, preset.preferences
    assert (preset.total_env_steps, preferences.comparisons) == (of.ENV_STEPS, of.COMPARISONS)
    assert (preferences.first_comparisons, preferences.steepness) == (of.FIRST_COMPARISONS, of.STEEPNESS)
    assert (ppo.num_envs, ppo.rollout_length) == (of.COPIES, of.EPISODE)
    assert (preset.fragments.length, preset.fragments.pool) == (of.LENGTH, of.POOL)
    assert (reward.ensemble_size, reward.batch_size) == (of.MEMBERS, of.BATCH)
    assert (reward.initial_updates, reward.updates) == (of.FIRST_UPDATES, of.UPDATES)
    assert (ppo.epochs, ppo.minibatch_size, ppo.learning_rate) == (of.EPOCHS, of.MINIBATCH, of.LEARNING_RATE)
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip) == (of.GAMMA, of.LAMBDA, of.CLIP)
    assert (ppo.value_coefficient, ppo.max_grad_norm) == (of.VALUE_COEFFICIENT, of.LARGEST_NORM)


def test_it_imports_nothing_of_the_package() -> None:
    assert "rlhf_ray" not in {
        line.split()[1] for line in FILE.read_text().splitlines() if line.startswith(("import", "from"))
    }


@pytest.mark.soak
@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_the_returns_of_five_seeds_overlap(tmp_path: Path) -> None:
    alone = method()
    mine = [alone.true_return(alone.learn(seed, lambda line: None)) for seed in SEEDS]
    runs = [rr.learn("pendulum", seed=seed, folder=tmp_path / str(seed), progress=False) for seed in SEEDS]
    theirs = [run.evaluate(episodes=24).true_return_mean for run in runs]
    print(f"in one file {sorted(map(round, mine))}, the package {sorted(map(round, theirs))}")
    assert max(min(mine), min(theirs)) <= min(max(mine), max(theirs))  # the ranges overlap
    assert sorted(mine)[2] > -400.0  # and both learn: random actions earn about -1200
    assert sorted(theirs)[2] > -400.0
