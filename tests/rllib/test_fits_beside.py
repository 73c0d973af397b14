"""Fits of the synchronous ring beside the next rollout, which is harder to bear in one process: to the same bits."""

import random
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.actors import synchronous
from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.data import defaults
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.metrics import flat_metrics
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.whole_runs import TIMES, running

plain_fit = RewardTrainer.fit


class Gate:
    """Lets a whole fit after the first one happen inside one step of the environment, or fail. ``fits``: how many did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int, error: Exception | None = None):
        self.beside, self.error, self.fits = cores > 1, error, 0
        self.begun, self.inside, self.done = (threading.Event() for _ in range(3))
        Drawing.gate = self
        monkeypatch.setattr(LocalExecutor, "here", False)  # as if the fit had a process of its own
        monkeypatch.setattr(synchronous, "usable_cores", lambda: cores)
        monkeypatch.setattr(RewardTrainer, "fit", lambda trainer, *of, **named: self.fit(trainer, *of, **named))
        monkeypatch.setattr(defaults, "_theirs", None)  # and so again for the tests after this one

    def fit(self, trainer: RewardTrainer, *of: Any, **named: Any) -> Any:
        if not self.beside or not int(trainer.ensemble.version):
            return plain_fit(trainer, *of, **named)
        self.begun.set()
        assert self.inside.wait(60)
        try:
            assert torch.get_default_dtype() == torch.float64
            if self.error is not None:
                raise self.error
            report = plain_fit(trainer, *of, **named)
            self.fits += 1
            return report
        finally:
            self.inside.clear()
            self.done.set()

    def step(self) -> None:
        waits = self.beside and self.fits < 2 and not Drawing.interrupts  # a busy machine begins the fit late
        if self.begun.wait(0.005 if waits else 0):
            self.begun.clear()
            self.inside.set()
            assert self.done.wait(60)
            self.done.clear()


class Drawing(gym.Env[Any, Any]):
    """Shows numbers of all global generators, and sets torch's default dtype. The first clips, made without seeds, show 0."""

    gate: Gate
    draws = interrupts = False

    def __init__(self, render_mode: str | None = None):
        self.observation_space = gym.spaces.Box(0.0, 2.0, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        if self.interrupts and self.gate.begun.wait(0.05):  # a busy machine begins the fit late
            raise KeyboardInterrupt
        before = random.random(), np.random.random()
        self.gate.step()
        shown = np.array([*before, torch.rand(1).item() + np.random.random(), abs(action[0])], np.float32)
        return self.draws * shown, float(action[0]), False, False, {}


drawing: Any = Drawing
gym.register("tests/Drawing-v0", drawing, max_episode_steps=20)


def short(**reward_model: Any) -> Any:
    """A training of three iterations, before two of which a fit is due."""
    experiment = Experiment(
        environment="tests/Drawing-v0",
        total_env_steps=80 + 3 * 80,
        fragments=FragmentSettings(length=5, initial_env_steps=80, pool=40, exploration_env_steps=0),
        preferences=PreferenceSettings(comparisons=20, initial_comparisons=10, rounds=2, held_out_share=0.2),
        reward_model=RewardModelSettings(hidden=(8,), initial_updates=4, updates=3, **reward_model),
        ppo=PPOSettings(num_envs=2, rollout_length=40, minibatch_size=40, epochs=2, hidden=(8,)),
    )
    return preference_config(experiment)


def trained(**reward_model: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The metrics of each iteration, and the weights of agent and reward."""
    with running(short(**reward_model).build_algo()) as algorithm:
        algorithm.begin()
        Drawing.draws, metrics = True, []
        while not algorithm.finished:
            metrics.append({name: repr(value) for name, value in flat_metrics(algorithm.train()).items()})
        state, Drawing.draws = algorithm.learner_group.get_weights(), False
    weights = [value for module in sorted(state) for _, value in sorted(state[module].items())]
    return [{name: value for name, value in of.items() if name not in TIMES} for of in metrics], weights


def test_a_fit_inside_a_step_that_draws_and_changes_defaults_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    Gate(monkeypatch, cores=1)
    metrics, weights = trained()
    gate = Gate(monkeypatch, cores=2)
    beside, found = trained()
    assert gate.fits == 2
    assert metrics == beside
    assert all(map(np.array_equal, weights, found))


def test_a_fit_that_fails_beside_a_rollout_fails_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    Gate(monkeypatch, cores=2, error=ValueError("no fit today"))
    with running(short().build_algo()) as algorithm:
        algorithm.train()
        with pytest.raises(ValueError, match="no fit today"):
            algorithm.train()
        assert algorithm.ring.version == 1


def test_an_interrupt_beside_a_fit_leaves_what_can_be_saved_and_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(monkeypatch, cores=2)
    with running(short().preferences(run_dir=tmp_path / "run").build_algo()) as algorithm:
        algorithm.train()
        monkeypatch.setattr(Drawing, "interrupts", True)
        with pytest.raises(KeyboardInterrupt):
            algorithm.train()
        algorithm.stop_now()
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
        assert (algorithm.ring.version, algorithm.ring.rounds_held) == (1, 1)  # that fit counts no more
        gate.inside.set()  # so that the fit's thread ends
    gate = Gate(monkeypatch, cores=2)
    monkeypatch.setattr(Drawing, "interrupts", False)
    with running(short().preferences(run_dir=tmp_path / "run").build_algo()) as resumed:
        resumed.restore_from_path(str(tmp_path / "checkpoint"))
        assert flat_metrics(resumed.train())["reward_version"] == 2
        assert gate.fits == 1
