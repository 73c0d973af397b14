"""`import rlhf_ray as rr`: what it opens, lazily, and the script that a researcher writes first."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlhf_ray as rr
from rlhf_ray.data.lock import Lock
from rlhf_ray.runs.folder import RunFolder
from tests.command_line import run_python
from tests.made_up import played_at_random
from tests.test_docs import PAGES, blocks
from tests.whole_runs import with_path

ROOT = Path(__file__).parents[1]
DEEP = ("rlhf_ray.interpret", "rlhf_ray.study")
"""Tools on the inside of reports, which pages about them use."""
COMPOSED = ("serve_labelling.py",)
"""Composes parts of the page, which are not public."""

SCRIPT = """
import rlhf_ray as rr
{settings}
run = rr.learn("Pendulum-v1", comparisons=200, env_steps=100_000)
run.agent, run.reward, run.labels, run.evaluate(episodes=20), run.report()
truth, steps = rr.true_reward("Pendulum-v1"), run.steps(600)
reward = rr.Reward.load(run.path);  rr.epic(reward, truth, steps)
{quick}
rr.explain(reward, steps=steps);  rr.explain(run.agent, env="Pendulum-v1")
"""
"""The script word for word; the test makes its budgets small."""
SMALL = """
from tests.whole_runs import small
learn, explain = rr.learn, rr.explain
def small_learn(env, **given):
    assert (given["comparisons"], given["env_steps"]) == (200, 100_000)
    return learn(small(), folder="run", progress=False, evaluation_episodes=2)
rr.learn = small_learn
"""
QUICK = """
def rr_explain(what, **given):
    return explain(what, only=["header" if "steps" in given else "recording"], effort=0.1, **given)
rr.explain = rr_explain
"""


def test_importing_it_imports_nothing_else_and_its_names_come_when_used() -> None:
    program = (
        "import sys, rlhf_ray as rr; heavy = {'numpy', 'torch', 'ray', 'gymnasium', 'pyarrow'}; "
        "assert not heavy & sys.modules.keys(); rr.Oracle; assert 'ray' not in sys.modules; print(len(dir(rr)))"
    )
    assert int(run_python(program, env=with_path(ROOT)).stdout) == len(rr.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lern'"):
        rr.lern  # noqa: B018 (type checkers know it, too)


def test_type_checkers_see_what_is_there() -> None:
    block = next(node for node in ast.parse(Path(rr.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rr._HOMES
    assert sorted(seen) == sorted(rr.__all__)


@pytest.mark.slow
def test_each_name_is_there_and_has_a_docstring() -> None:
    assert [name for name in rr.__all__ if not getattr(rr, name).__doc__] == []


def test_the_reference_lists_exactly_what_is_public() -> None:
    page = (ROOT / "docs" / "reference" / "public.md").read_text()
    listed = [name for names in re.findall(r"<!-- public: (.+?) -->", page) for name in names.split()]
    assert sorted(listed) == sorted(rr.__all__)
    assert sorted(re.findall(r"^\| \[`rr\.(\w+)`\]", page, re.MULTILINE)) == sorted(rr.__all__)


def test_pages_and_examples_use_nothing_else() -> None:
    programs = {str(block): block.text for page in PAGES for block in blocks(page, "python")}
    programs |= {file.name: file.read_text() for file in (ROOT / "examples").glob("*.py") if file.name not in COMPOSED}
    found = {
        where: module
        for where, text in programs.items()
        for module in re.findall(r"^\s*(?:from|import) (rlhf_ray[\w.]*)", text, re.MULTILINE)
        if module != "rlhf_ray" and not module.startswith(DEEP)
    }
    assert not found


@pytest.mark.slow
def test_the_script_that_a_researcher_writes_first_runs_word_for_word(tmp_path: Path) -> None:
    program = SCRIPT.format(settings=SMALL, quick=QUICK)
    run_python(program, cwd=tmp_path, env=with_path(ROOT), timeout=600)
    for page in ("run/report.html", "reward_report/report.html", "agent_report/report.html"):
        assert (tmp_path / page).exists()


class Short(gym.Wrapper):  # type: ignore[type-arg]
    """An environment of the user's own: Pendulum."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))


@pytest.mark.slow
def test_learning_takes_names_and_objects(tmp_path: Path) -> None:
    run = rr.learn(
        Short,
        comparisons=6,
        env_steps=1_000,
        teacher=rr.SimulatedTeacher("ada", mistake=0.1),
        selection=rr.Disagreement(),
        reward_model=rr.RewardModel(ensemble_size=2, initial_updates=2, updates=2),
        agent=rr.PPO(num_envs=2, rollout_length=100, minibatch_size=100, epochs=1),
        preferences=rr.Preferences(rounds=1),
        fragments=rr.FragmentSettings(length=10, initial_env_steps=400),
        seed=5,
        folder=tmp_path / "run",
        evaluation_episodes=2,
        progress=False,
    )
    assert set(run.store.events()["annotator"].to_pylist()) == {"ada"}
    assert len(run.labels) == 6
    assert (run.experiment.seed, run.experiment.agent, run.experiment.reward_model.ensemble_size) == (5, "ppo", 2)
    assert run.true_return == run.outcome["trained"]["true_return_mean"]
    again = rr.evaluate(run.agent, Short, episodes=2, seed=5)
    assert again.true_return_mean == pytest.approx(run.true_return)
    assert rr.evaluate(run, episodes=2, seed=5) == again
    assert len(run.steps(90)) == 90


def test_a_preset_brings_its_settings_and_wrong_settings_leave_nothing_behind(tmp_path: Path) -> None:
    preset = rr.preset("pendulum")
    assert preset.preferences.with_comparisons(100).first_comparisons == preset.preferences.first_comparisons // 2
    assert rr.preset(preset) is preset
    assert rr.preset("CartPole-v1") == rr.Experiment("CartPole-v1")
    with pytest.raises(rr.SettingError, match="teacher is 'orakel'"):
        rr.learn("Pendulum-v1", teacher="orakel", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(rr.SettingError, match="env is None"):
        rr.evaluate(None)
    assert {"pendulum", "cartpole"} <= set(rr.names()["preset"])
    assert {"oracle", "human"} <= set(rr.names()["preferences.teacher"])


def test_distances_take_rewards_then_steps() -> None:
    truth, rng = rr.true_reward("Pendulum-v1"), np.random.default_rng(0)
    env = rr.make_env("Pendulum-v1")
    steps = rr.Transitions.of_trajectories(played_at_random("Pendulum-v1", range(4), 60))
    twice = rr.CallableReward(lambda *step: 2.0 * truth(*step), env.observation_space, env.action_space)
    for distance in (rr.epic, rr.dard):
        assert distance(twice, truth, steps).value == pytest.approx(0.0, abs=1e-6)
        assert distance(twice, truth, steps, 0.9, rng).value == pytest.approx(0.0, abs=1e-6)


def test_a_second_report_into_one_folder_is_refused(tmp_path: Path) -> None:
    space, some = gym.spaces.Box(-1, 1, (1,), np.float32), np.zeros((4, 1), np.float32)
    steps = rr.Transitions(some, np.zeros(4, int), some, np.zeros(4, bool), np.zeros(4), np.zeros(4, int), np.arange(4))
    reward = rr.CallableReward(lambda o, a, n, t: n[:, 0], space, gym.spaces.Discrete(2))
    for what, of in ((reward, {"steps": steps}), (None, {"env": "Pendulum-v1"})):
        with Lock(tmp_path / "report"), pytest.raises(rr.SettingError, match="is being written by process"):
            rr.explain(what, out=tmp_path / "report", **of)


WITHOUT_RAY = """
import sys
class Blocked:
    def find_spec(self, name, *arguments):
        if name.partition(".")[0] == "ray":
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import rlhf_ray as rr
from rlhf_ray.cli import main
run = rr.Run(sys.argv[1])
print(run.agent.name, run.evaluate(episodes=2).true_return_mean)
main(["evaluate", sys.argv[1], "--episodes", "2"])
main(["interpret", "reward", sys.argv[1], "--steps", "header", "--effort", "0.1"])
main(["interpret", "agent", sys.argv[1], "--steps", "recording", "--effort", "0.1"])
assert "ray" not in sys.modules
"""


@pytest.mark.slow
def test_a_finished_run_is_evaluated_and_interpreted_without_ray(trained_run: RunFolder, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(trained_run.path, copied)
    shutil.rmtree(copied / "checkpoints")  # all that evaluating and interpreting need lies beside the reward model
    done = run_python(WITHOUT_RAY, copied, cwd=tmp_path, env=with_path(ROOT), timeout=600)
    expected = rr.Run(trained_run.path).evaluate(episodes=2).true_return_mean
    assert float(done.stdout.splitlines()[0].split()[-1]) == pytest.approx(expected)
    for name in ("reward", "agent"):
        assert (copied / "interpret" / name / "report.html").exists()
