"""PreferencePPO: the ring inside RLlib, checkpoints, budgets, reproducibility, its folder; mostly with the ring here."""

import copy
import functools
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.actor import ActorMethod
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.tune.registry import ENV_CREATOR, _global_registry

from rlhf_ray.data import places
from rlhf_ray.data.lock import LockedError
from rlhf_ray.data.nested import read_nested
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SettingError,
)
from rlhf_ray.store import PreferenceStore
from tests import whole_runs
from tests.whole_runs import outcome, running, stored_by

in_process = pytest.mark.usefixtures("ring_in_process")


def small(**changes: Any) -> Experiment:
    """Pendulum for three iterations, with labels in two rounds after the first."""
    values: dict[str, Any] = {
        "total_env_steps": 500 + 3 * 800,
        "seed": 3,
        "fragments": FragmentSettings(length=10, initial_env_steps=500, pool=60),
        "preferences": PreferenceSettings(comparisons=30, initial_comparisons=10, rounds=2, held_out_share=0.2),
        "reward_model": RewardModelSettings(hidden=(16,), initial_updates=20, updates=5),
        "ppo": PPOSettings(num_envs=4, rollout_length=200, minibatch_size=200, epochs=2, hidden=(16,)),
    }
    return Experiment(**(values | changes))


def run(experiment: Experiment, checkpoint: Path | None = None) -> dict[str, Any]:
    """Train to the end of the budget; what two equal runs have to agree on. Perhaps save a checkpoint after each iteration."""
    with running(PreferencePPOConfig.from_experiment(experiment).build_algo()) as algorithm:
        results = []
        while not algorithm.finished:
            results.append(algorithm.train())
            if checkpoint is not None:
                algorithm.save_to_path(str(checkpoint))
        returns = [result["env_runners"].get("episode_return_mean") for result in results]
        return outcome(algorithm) | {"returns": returns, "iterations": len(results)}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    whole_runs.assert_same(first, second)
    np.testing.assert_array_equal(first["returns"], second["returns"])


@pytest.mark.slow
@in_process
def test_pretraining_comes_before_the_first_labels_and_counts_towards_the_budget(tmp_path: Path) -> None:
    of = small(
        total_env_steps=500 + 4 * 800,
        preferences=PreferenceSettings(comparisons=30, initial_comparisons=10, rounds=2, pretraining_env_steps=801),
        checkpoint_every=1,
    )
    algorithm = PreferencePPOConfig.from_experiment(of).build_algo()
    rows = []
    with running(algorithm):
        assert algorithm.begin()
        while not algorithm.finished:
            result = algorithm.train()
            learned = result["learners"]["default_policy"]
            rows.append(
                [result["preferences"][name] for name in ("env_steps", "comparisons", "reward_version")]
                + [learned["learned_reward_mean"], learned["learned_reward_std"]]
            )
            if len(rows) == 1:
                algorithm.save_to_path(str(tmp_path))
        module = algorithm.learner_group._learner.module[REWARD_MODULE_ID].unwrapped()
        assert int(module.novelty.seen) == 2 * 800  # later versions of the reward left the memory as it was
    assert [row[0] for row in rows] == [800, 1600, 500 + 3 * 800, 500 + 4 * 800]
    assert [row[1:3] for row in rows] == [[0, 0], [0, 0], [10, 1], [30, 2]]
    assert rows[0][3:] == pytest.approx([0, 1], abs=1e-5)  # normalised
    with running(PreferencePPOConfig.from_experiment(of).build_algo()) as resumed:
        resumed.restore_from_path(str(tmp_path))
        learned = resumed.train()["learners"]["default_policy"]
        assert [learned["learned_reward_mean"], learned["learned_reward_std"]] == rows[1][3:]


@pytest.mark.slow
@in_process
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_policy_normalises_observations_and_the_reward_sees_them_as_they_are(tmp_path: Path, memory: str) -> None:
    ppo = PPOSettings(
        num_envs=4,
        rollout_length=200,
        minibatch_size=200,
        epochs=2,
        hidden=(16,),
        memory=memory,  # type: ignore[arg-type]
        normalize_observations=True,
    )
    with running(PreferencePPOConfig.from_experiment(small(ppo=ppo)).build_algo()) as algorithm:
        algorithm.train()
        result = algorithm.train()
        folder = algorithm.save_to_path(str(tmp_path))
        weights = algorithm.learner_group.get_weights([DEFAULT_MODULE_ID])[DEFAULT_MODULE_ID]
        seen = stored_by(algorithm).pairs.left.observations
    assert weights["statistics.count"] == 2 * 4 * 201  # each observation of two rollouts of four whole episodes, once
    deviation = np.sqrt(weights["statistics.squares"] / weights["statistics.count"])[:3]
    # The random policy's, roughly: of other episodes, and few.
    np.testing.assert_array_less(np.abs(np.log(deviation / seen.std((0, 1)))), np.log(4.0))
    assert np.abs(seen[..., 2]).max() > 4  # rad/s
    assert np.isfinite(result["learners"]["default_policy"]["policy_loss"])
    saved = load_policy(Path(folder)).module.network.statistics
    np.testing.assert_array_equal(saved.mean.numpy(), weights["statistics.mean"])


@pytest.mark.slow
@in_process
def test_a_run_meets_its_budgets_exactly_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    first = run(small(), checkpoint=tmp_path)
    assert first["env_steps"] == 2_900
    assert len(first["ids"]) == len(set(first["ids"])) == 30
    assert first["iterations"] == 3
    assert_same(first, run(small()))
    assert run(small(seed=4, total_env_steps=500 + 800))["ids"][:10] != first["ids"][:10]


@pytest.mark.slow
@in_process
@pytest.mark.parametrize("arrays", [True, False])
def test_the_learner_sees_the_learned_reward_of_each_real_step_and_metrics_the_true_return(arrays: bool) -> None:
    reward_model = RewardModelSettings(
        hidden=(16,), normalize_inputs="none", use_next_state=True, use_done=True, initial_updates=20
    )
    config = PreferencePPOConfig.from_experiment(small(reward_model=reward_model))
    if not arrays:
        config.callbacks(on_episode_end=lambda **arguments: None)  # needs RLlib's episodes
    with running(config.build_algo()) as algorithm:
        result = algorithm.train()
        ensemble = algorithm.reward_model()
        assert int(ensemble.version) == result["learners"][DEFAULT_MODULE_ID]["reward_version"] == 1
        # True returns of Pendulum lie between -2000 and 0 per episode of 200 steps; learned ones are near 0.
        assert -2000 < result["env_runners"]["episode_return_mean"] < -300
        learner = algorithm.learner_group._learner
        episodes = algorithm.env_runner.sample(num_timesteps=800)
        if arrays:
            (rollout,) = episodes
            columns, _ = learner._rows_of_arrays(episodes)
            rewards = np.zeros(rollout.real.shape)
            rewards[rollout.real] = columns["rewards"]
            pieces = [(rewards[rows, at], rows, at) for at, rows in rollout.pieces()]
            steps = [
                (found, rollout.observations[rows.start : rows.stop + 1, at], rollout.actions[rows, at])
                for found, rows, at in pieces
            ]
        else:
            batch = learner._learner_connector(
                rl_module=learner.module, batch={}, episodes=copy.deepcopy(episodes), shared_data={}, metrics=None
            )[DEFAULT_MODULE_ID]
            # RLlib adds a row to each episode.
            ends = np.cumsum([len(episode) + 1 for episode in episodes])
            assert not batch["rewards"][ends - 1].any()
            steps = [
                (batch["rewards"][end - len(episode) - 1 : end - 1], episode.get_observations(), episode.get_actions())
                for end, episode in zip(ends, episodes, strict=True)
            ]
        assert sum(len(found) for found, _, _ in steps) == 800
        for found, observations, actions in steps:
            ended = np.zeros(len(found), dtype=bool)
            applied = np.clip(actions * 2.0, -2.0, 2.0)
            expected = ensemble.predict(observations[:-1], applied, observations[1:], ended)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@in_process
def test_a_checkpoint_can_be_moved_loaded_and_trained_on(tmp_path: Path) -> None:
    config = PreferencePPOConfig.from_experiment(small()).preferences(store=tmp_path / "store")
    with running(config.build_algo()) as algorithm:
        algorithm.train()
        algorithm.train()
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
        state = read_nested(tmp_path / "checkpoint" / "ring")
        reward = algorithm.ring.newest_reward()
    shutil.move(tmp_path / "checkpoint", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "store")

    saved = RewardEnsemble.load(tmp_path / "elsewhere" / REWARD_MODULE_ID).state()
    for name, value in reward.items():
        np.testing.assert_array_equal(saved[name], value)
    assert len(PreferenceStore(tmp_path / "elsewhere" / "preferences")) == state["answered"]

    _global_registry.unregister(ENV_CREATOR, algorithm.config.env)  # as in a process that never set it
    with running(PreferencePPO.from_checkpoint(str(tmp_path / "elsewhere"))) as restored:
        for name, value in reward.items():
            np.testing.assert_array_equal(restored.ring.newest_reward()[name], value)
        module = restored.learner_group._learner.module[REWARD_MODULE_ID]
        assert int(module.ensemble.version) == state["version"]
        assert restored.env_steps == 500 + 2 * 800
        while not restored.finished:
            restored.train()
        assert restored.ring.answered == 30
        assert restored.env_steps == 2_900
        assert not (tmp_path / "store").exists()  # the restored one has a store of its own


@pytest.mark.slow
@in_process
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"environment": "Pendulum-v9"}, ["Pendulum-v9", "Pendulum-v1"]),
        ({"environment": "FrozenLake-v1"}, ["FrozenLake-v1", "Discrete(16)"]),
        ({"environment": "CartPole-v1"}, ["preferences.allow_variable_horizon", "False"]),
        ({"reward_model": RewardModelSettings(network="cnn")}, ["reward_model.network", "cnn", "mlp"]),
        ({"ppo": PPOSettings(network="nature", rollout_length=200, num_envs=4)}, ["ppo.network", "nature", "mlp"]),
    ],
)
def test_what_cannot_work_is_said_before_anything_trains(change: dict[str, Any], words: list[str]) -> None:
    config = PreferencePPOConfig.from_experiment(small(**change))
    algorithm = None
    try:
        with pytest.raises(SettingError) as error:  # noqa: PT012 – some are seen when it is built, some in the first clips
            algorithm = config.build_algo()
            algorithm.train()
        for word in words:
            assert word in str(error.value)
    finally:
        if algorithm is not None:
            algorithm.stop()


@in_process
def test_fragments_longer_than_an_episode_are_refused() -> None:
    config = PreferencePPOConfig().environment("rlhf_ray/MovingDot-v0").fragments(length=101, initial_env_steps=400)
    config.env_runners(num_envs_per_env_runner=4).training(train_batch_size_per_learner=800, minibatch_size=200)
    with pytest.raises(SettingError, match=r"fragments\.length is 101.*at most 100 steps"):
        config.build_algo()


def test_ray_is_started_with_room_for_the_ring_and_the_env_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    class StartedError(Exception):
        """In place of Ray."""

    def start(cpus: int) -> None:
        raise StartedError(f"with {cpus} CPUs")

    monkeypatch.setattr("rlhf_ray.rllib.algorithm.start_ray", start)
    config = PreferencePPOConfig().environment("Pendulum-v1").env_runners(num_env_runners=3)
    with pytest.raises(StartedError, match="with 5 CPUs"):
        config.build_algo()


def test_a_setting_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(SettingError, match=r"has no setting lenght; did you mean length\?"):
        PreferencePPOConfig().fragments(lenght=10)


RUNNERS, ITERATIONS = 2, 3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_calls_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = PPOSettings(
        num_envs=2, num_env_runners=RUNNERS, rollout_length=200, minibatch_size=200, epochs=2, hidden=(16,)
    )
    algorithm = PreferencePPOConfig.from_experiment(small(total_env_steps=500 + 4 * 800, ppo=ppo)).build_algo()
    counts = Counter[str]()
    remote = ActorMethod._remote

    @functools.wraps(remote)
    def counted(method: Any, *arguments: Any, **keywords: Any) -> Any:
        kind = method._actor._ray_actor_creation_function_descriptor.class_name.rpartition(".")[2]
        counts[kind] += 1
        return remote(method, *arguments, **keywords)

    try:
        algorithm.train()  # begins
        monkeypatch.setattr(ActorMethod, "_remote", counted)
        for _ in range(ITERATIONS):
            algorithm.train()
    finally:
        monkeypatch.undo()
        algorithm.stop()
    assert counts.pop("ArrayEnvRunner") == 2 * RUNNERS * ITERATIONS  # sample, and take new weights
    assert 0 < counts.total() <= 8 * ITERATIONS  # of the ring, which asks and fits in two of them


def test_comparisons_are_under_runs_and_a_line_says_where(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(places, "RUNS", str(tmp_path / "runs"))
    with caplog.at_level(logging.WARNING, "rlhf_ray"):
        algorithm = preference_config(whole_runs.small()).build_algo()
        algorithm.begin()
        algorithm.stop()
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("Pendulum-v1-seed3-")
    assert f"The comparisons are in {folder}/preferences; " in caplog.text
    assert len(PreferenceStore(folder / "preferences", create=False)) == 10


def test_a_folder_of_ones_own_has_everything_and_one_writer(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    config = preference_config(whole_runs.small()).preferences(run_dir="mine")
    algorithm = config.build_algo()
    assert algorithm.logdir == str(tmp_path / "mine")
    assert "comparisons are in" not in caplog.text
    with pytest.raises(LockedError, match=f"{tmp_path}/mine/preferences is being written by process "):
        config.build_algo()
    algorithm.stop()
    config.build_algo().stop()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["preferences"]


def test_a_folder_that_can_not_be_made_is_named_and_a_refused_run_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "RUNS", str(tmp_path / "runs"))
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=f"folder {tmp_path}/file.* can't be made .*run_dir"):
        preference_config(whole_runs.small()).preferences(run_dir=tmp_path / "file" / "run").build_algo()
    with pytest.raises(SettingError, match=r"fragments\.length"):
        preference_config(whole_runs.small()).fragments(length=250).build_algo()
    assert not list((tmp_path / "runs").glob("*"))
