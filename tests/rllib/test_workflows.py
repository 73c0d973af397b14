"""Ways to begin a run, each from files to files: stored labels, a fitted reward, a policy, demonstrations."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from safetensors.numpy import load_file

from rlhf_ray import cli
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.starting import check_policy, policy_weights
from rlhf_ray.runs.callbacks import Callback
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.runs.train import train
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.settings.start import Start
from rlhf_ray.store import PreferenceStore
from tests.command_line import fails_with
from tests.made_up import labels_in, some_comparisons
from tests.whole_runs import running, small


def spaces_of(config: PreferencePPOConfig) -> tuple[Any, Any]:
    checked = config.check_environment()
    return checked.observation_space, checked.action_space


def asking(**changes: Any) -> PreferenceSettings:
    return dataclasses.replace(small().preferences, **changes)


@pytest.mark.parametrize(
    ("teacher", "comparisons", "said"),
    [
        ("oracle", 36, "30 stored answers count towards preferences.comparisons=36; the teacher oracle will add 6"),
        ("stochastic", 30, "30 stored answers count towards preferences.comparisons=30; nothing more is asked"),
        ("oracle", 20, "30 stored answers count towards preferences.comparisons=20; nothing more is asked"),
    ],
)
def test_only_what_is_still_to_be_asked_is_too_much_and_a_line_tells_it(
    teacher: str, comparisons: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers than fit into the steps: all but a few are stored."""
    monkeypatch.setattr("rlhf_ray.settings.experiment.COMPARISONS_PER_CLIP", 0.05)  # 14 for 2,900 steps
    spaces = spaces_of(PreferencePPOConfig.from_experiment(small()))
    length = small().resolved_fragments().length
    labels = some_comparisons(30, length, observations=spaces[0], actions=spaces[1])
    PreferenceStore(tmp_path / "labels").commit(labels, annotator="somebody")
    experiment = small(preferences=asking(comparisons=comparisons, teacher=teacher, initial_comparisons=1))
    lines: list[str] = []
    start = Start(labels=str(tmp_path / "labels"))
    folder = new_run(tmp_path / "run", experiment, start, say=lines.append)
    assert lines == [f"--labels {tmp_path / 'labels'}: {said}"]
    config = PreferencePPOConfig.from_experiment(folder.experiment()).start_from(labels=tmp_path / "labels")
    config.check_settings()
    config.labels_from = None  # as restored from a checkpoint, which has the labels
    config.check_settings()
    if comparisons > 14:
        with pytest.raises(SettingError, match=f"preferences.comparisons is {comparisons}; total_env_steps"):
            new_run(tmp_path / "scratch", experiment)
        many = small(preferences=asking(comparisons=60, teacher=teacher, initial_comparisons=1))
        with pytest.raises(SettingError, match="is 60; of which 30 are answered; total_env"):
            new_run(tmp_path / "many", many, start)


class Watching(Callback):
    """Hands the metrics of each iteration to a function."""

    def __init__(self, look: Callable[[dict[str, Any]], None]):
        self.on_metrics = look  # type: ignore[method-assign]


def go(path: Path, experiment: Experiment, start: Start, **options: Any) -> tuple[RunFolder, Outcome]:
    folder = new_run(path, experiment, start)
    return folder, train(folder, evaluation_episodes=2, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_that_is_going_on_is_evaluated_at_its_newest_whole_checkpoint(tmp_path, monkeypatch):
    said: list[list[str]] = []

    def evaluate(metrics: dict[str, Any]) -> None:
        """Run the command after each iteration, of which the checkpoint is still to be made."""
        said.append([])
        with monkeypatch.context() as patch:
            patch.setattr("builtins.print", lambda *words, **options: said[-1].append(" ".join(map(str, words))))
            try:
                cli.main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--json"])
            except SystemExit as end:
                said[-1].append(str(end.code))

    experiment = small(total_env_steps=500 + 2 * 600, checkpoint_every=1, preferences=asking(rounds=1))
    folder, _ = go(tmp_path / "run", experiment, Start(), callbacks=[Watching(evaluate)])
    (message, code), (values,) = said
    assert "has no policy yet" in message
    assert "checkpoint_every=1 " in message
    assert code == "2"
    evaluated, row = json.loads(values), folder.metrics_at(1)
    assert (evaluated["env_steps"], evaluated["comparisons"]) == (row["env_steps"], row["comparisons"])
    assert evaluated["episodes"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("mode", ["synchronous", pytest.param("asynchronous", marks=pytest.mark.soak)])
def test_a_run_starts_from_stored_labels_and_asks_only_for_what_is_missing(trained_run, tmp_path, mode):
    given = labels_in(trained_run.preferences)
    experiment = small(seed=4, preferences=asking(comparisons=46, initial_comparisons=42, mode=mode))
    folder, outcome = go(tmp_path / "run", experiment, Start(labels=str(trained_run.path)))
    stored = labels_in(folder.preferences)
    assert stored.pairs.ids[:40] == given.pairs.ids
    rows = read_metrics(folder.metrics)
    assert rows[0]["comparisons"] >= 42
    assert outcome.comparisons == len(stored) == 46
    assert rows[0]["gradient_steps"] == 20
    assert RewardEnsemble.load(folder.reward_model).version > 1


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("mode", ["synchronous", pytest.param("asynchronous", marks=pytest.mark.soak)])
def test_where_all_labels_are_there_none_is_asked_and_the_fit_takes_the_steps_of_all_rounds(
    trained_run: RunFolder, tmp_path: Path, mode: Any
) -> None:
    experiment = small(seed=4, preferences=asking(mode=mode))
    folder, outcome = go(tmp_path / "run", experiment, Start(labels=str(trained_run.preferences)))
    assert outcome.comparisons == 40
    given = PreferenceStore(trained_run.preferences).events()
    assert PreferenceStore(folder.preferences).events()["event_id"] == given["event_id"]
    rows = read_metrics(folder.metrics)
    assert [row["reward_version"] for row in rows] == [1] * 4
    assert rows[0]["gradient_steps"] == 20 + 3 * 5
    assert outcome.env_steps == 2_900


@pytest.mark.soak
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_starts_again_without_what_it_began_from_and_comes_to_the_same(trained_run, tmp_path):
    sources = tmp_path / "sources"
    shutil.copytree(trained_run.path, sources)
    start = Start(labels=str(sources), policy_from=str(sources))
    experiment = small(seed=5, preferences=asking(comparisons=50))
    folder = new_run(tmp_path / "first", experiment, start)
    shutil.copytree(folder.path, tmp_path / "again")
    shutil.rmtree(sources)
    runs = [folder, RunFolder.open(tmp_path / "again")]
    for run, resume in zip(runs, (False, True), strict=True):  # as after a kill before the first checkpoint
        train(run, resume=resume, evaluation_episodes=2)
    first, again = (load_file(run.reward_model / "reward.safetensors") for run in runs)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    policies = [policy_weights(run.path) for run in runs]
    for name, value in policies[0].items():
        np.testing.assert_array_equal(value, policies[1][name])
    shutil.rmtree(runs[1].start)
    with pytest.raises(SettingError, match="start a new run"):
        train(runs[1], resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("runners", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_fitted_reward_is_trained_on_and_nothing_is_asked(trained_run, tmp_path, runners):
    source = tmp_path / "fitted"
    shutil.copytree(trained_run.reward_model, source)
    experiment = small(
        seed=6,
        preferences=asking(mode="asynchronous" if runners else "synchronous"),
        reward_model=RewardModelSettings(),
        ppo=dataclasses.replace(small().ppo, num_env_runners=runners),
    )
    actors: set[str] = set()

    def look(metrics: dict[str, Any]) -> None:
        actors.update(name for name in ray.util.list_named_actors() if name.startswith("ring-"))
        if metrics["iteration"] == 1:
            shutil.rmtree(source)  # and the rest is done without it

    folder, outcome = go(tmp_path / "run", experiment, Start(reward_from=str(source)), callbacks=[Watching(look)])
    assert not actors
    assert (outcome.comparisons, outcome.env_steps, outcome.held_out_accuracy) == (0, 2_400, None)
    assert not folder.preferences.exists()
    fitted, used = (load_file(run.reward_model / "reward.safetensors") for run in (trained_run, folder))
    for name, value in fitted.items():
        np.testing.assert_array_equal(value, used[name])
    rows = read_metrics(folder.metrics)
    assert {row["learner_reward_version"] for row in rows} == {int(fitted["version"])}
    assert all(row["fragments_failed"] == 0 for row in rows)
    assert folder.report.exists()
    assert folder.experiment().reward_model == small().reward_model


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_checkpoint_with_a_fitted_reward_is_moved_and_goes_on(tmp_path: Path) -> None:
    reward = RewardEnsemble(*spaces_of(PreferencePPOConfig().environment("Pendulum-v1")), RewardModelSettings())
    reward.version += 7
    reward.save(tmp_path / "reward")
    config = PreferencePPOConfig.from_experiment(small()).start_from(reward_model=tmp_path / "reward")
    assert PreferencePPO.default_resource_request(config).bundles == [{"CPU": 1.0}]
    with running(config.build_algo()) as algorithm:
        result = algorithm.train()
        assert result["preferences"]["comparisons"] == 0
        assert result["preferences"]["env_steps"] == 600
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
    shutil.rmtree(tmp_path / "reward")
    shutil.move(tmp_path / "checkpoint", tmp_path / "moved")
    with running(PreferencePPO.from_checkpoint(str(tmp_path / "moved"))) as restored:
        result = restored.train()
        assert result["learners"]["default_policy"]["reward_version"] == 7
        for name, value in reward.state().items():
            np.testing.assert_array_equal(restored.reward_model().state()[name], value)


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_fitted_reward_does_not_hide_that_episodes_have_different_lengths(tmp_path: Path) -> None:
    config = PreferencePPOConfig.from_experiment(small(environment="CartPole-v1"))
    RewardEnsemble(*spaces_of(config), RewardModelSettings()).save(tmp_path / "reward")
    message = r"allow_variable_horizon is False, but episodes of \d+ to \d+ steps"
    config = config.start_from(reward_model=tmp_path / "reward")
    with running(config.build_algo()) as algorithm, pytest.raises(SettingError, match=message):
        algorithm.train()


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_policy_is_recorded_cloned_and_trained_on(trained_run, tmp_path, capsys):
    demos = tmp_path / "demos.npz"
    cli.main(["record", str(trained_run.path), "--episodes", "3", "--out", str(demos)])
    assert "600 steps in 3 episodes of the policy of iteration 4" in capsys.readouterr().out
    recorded = Demonstrations.load(demos)
    assert [len(episode) for episode in recorded.trajectories()] == [200, 200, 200]
    assert recorded.timeouts.sum() == 3
    folder = new_run(tmp_path / "run", small(seed=7), Start(demonstrations=str(demos), cloning_epochs=5), say=print)
    assert "pretraining the policy on 600 demonstrated steps" in capsys.readouterr().out
    cloned = load_file(folder.start / "policy.safetensors")
    config = PreferencePPOConfig.from_experiment(folder.experiment()).preferences(store=tmp_path / "store")
    with running(config.start_from(policy=folder.start / "policy.safetensors").build_algo()) as algorithm:
        for weights in (
            algorithm.learner_group.get_weights()["default_policy"],
            algorithm.env_runner.module.get_state(),
        ):
            for name, value in weights.items():
                np.testing.assert_array_equal(np.asarray(value), cloned[name])
        assert algorithm.training_iteration == 0
        assert algorithm.env_steps == 0
    config = PreferencePPOConfig.from_experiment(folder.experiment()).preferences(store=tmp_path / "other")
    with running(config.start_from(demonstrations=demos, cloning_epochs=5).build_algo()) as algorithm:
        for name, value in algorithm.learner_group.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(np.asarray(value), cloned[name])  # the same as from the command line


def test_demonstrations_that_cannot_be_cloned_from_are_refused_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", observations=np.zeros((9, 2)), actions=np.zeros((9, 1)))
    config = PreferencePPOConfig.from_experiment(small()).start_from(demonstrations=tmp_path / "other.npz")
    with pytest.raises(SettingError, match=r"other\.npz have observations of shape \(2,\)"):
        config.check_environment()
    with pytest.raises(SettingError, match="cloning_epochs is 0; it must be 1 or more"):
        config.start_from(demonstrations=tmp_path / "other.npz", cloning_epochs=0)


def test_a_policy_goes_on_from_a_run_or_a_checkpoint(trained_run: RunFolder, tmp_path: Path) -> None:
    trained = policy_weights(trained_run.checkpoint())
    for i, source in enumerate((trained_run.path, trained_run.checkpoint())):
        folder = new_run(tmp_path / str(i), small(seed=8), Start(policy_from=str(source)))
        for name, value in load_file(folder.start / "policy.safetensors").items():
            np.testing.assert_array_equal(value, trained[name])


@pytest.mark.slow
def test_what_does_not_fit_is_said_before_anything_is_made(trained_run, tmp_path, capsys):
    np.savez(tmp_path / "other.npz", observations=np.zeros((9, 2)), actions=np.zeros(9, np.int64))
    PreferenceStore(tmp_path / "empty")
    run = trained_run.path
    cases: list[tuple[str, list[str], list[str]]] = [
        ("MountainCar-v0", ["--reward-from", str(run)], ["reward model in", "Discrete(3)", "Box(-2.0, 2.0, (1,)"]),
        (
            "MountainCar-v0",
            ["--policy-from", str(run)],
            ["policy in", "actor.0.weight has the shape", "(16, 3)", "ppo.hidden"],
        ),
        (
            "MountainCar-v0",
            ["--labels", str(run), "--fragments.length", "10"],
            ["fragments in", "shape (3,)", "Discrete(3)"],
        ),
        ("pendulum", ["--demonstrations", str(tmp_path / "other.npz")], ["demonstrations in", "shape (2,)"]),
        ("pendulum", ["--demonstrations", str(tmp_path / "no.npz")], ["no.npz holds no recorded steps"]),
        ("pendulum", ["--reward-from", str(tmp_path / "empty")], ["holds no reward model"]),
        ("pendulum", ["--policy-from", str(tmp_path / "empty")], ["neither a run's folder, nor a checkpoint"]),
        ("pendulum", ["--policy-from", str(run)], ["actor.0.weight has the shape (16, 3)", "(64, 3)"]),
        ("pendulum", ["--labels", str(tmp_path / "empty")], ["has no labels"]),
        ("pendulum", ["--labels", str(tmp_path / "nothing")], ["not a preference store"]),
        ("pendulum", ["--labels", str(run), "--fragments.length", "25"], ["fragments.length is 25", "have 10 steps"]),
        ("pendulum", ["--labels", str(run), "--reward-from", str(run)], ["drop one of them"]),
    ]
    for name, words, messages in cases:
        printed = fails_with(capsys, "train", name, *words, "--run-dir", tmp_path / "new")
        for message in messages:
            assert message in printed, (words, printed)
        assert not (tmp_path / "new").exists()


def test_a_run_goes_on_only_with_what_it_began_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = new_run(tmp_path / "run", small(), options={"reference": False, "evaluation_episodes": 2})
    assert "keeps what the run started from" in fails_with(
        capsys, "train", "--resume", folder.path, "--policy-from", folder.path
    )


def test_a_fitted_reward_and_questions_do_not_go_together(tmp_path: Path) -> None:
    config = PreferencePPOConfig.from_experiment(small())
    RewardEnsemble(*spaces_of(config), RewardModelSettings()).save(tmp_path)
    with pytest.raises(SettingError, match=r"preferences\.comparisons is 5, but training uses the fitted reward model"):
        config.start_from(reward_model=tmp_path).preferences(comparisons=5, initial_comparisons=5).validate()
    config = PreferencePPOConfig.from_experiment(small()).start_from(reward_model=tmp_path, labels=tmp_path)
    with pytest.raises(SettingError, match="nothing would be fitted to them"):
        config.validate()
    config = PreferencePPOConfig.from_experiment(small()).start_from(reward_model=tmp_path).reward_model(hidden=(3,))
    with pytest.raises(SettingError, match="is already fitted, but reward_model has other settings"):
        config.check_environment()


PPO = {"actor.0.weight": np.zeros((8, 3)), "critic.0.weight": np.zeros((8, 3))}
SAC = {"network.actor.weight": np.zeros((8, 3)), "network.log_alpha": np.zeros(())}
STATISTICS = {"statistics.mean": np.zeros(3)}


@pytest.mark.parametrize("weights", [PPO, SAC, PPO | STATISTICS, {"own.weight": np.zeros(2)}])
def test_weights_of_the_same_names_and_shapes_fit(weights: dict[str, Any]) -> None:
    check_policy(weights, weights, "run", "ppo")
    check_policy(weights, weights | {"formal.seen.low": np.zeros(3)}, "run", "ppo")  # as before there were these


@pytest.mark.parametrize(
    ("weights", "expected", "agent", "said"),
    [
        (PPO, SAC, "sac", "its network.actor.weight does not exist, but .* agent=sac"),
        (SAC, PPO, "ppo", "its actor.0.weight does not exist, but .* agent=ppo"),
        (PPO | STATISTICS, PPO, "ppo", "run normalises its .* but ppo.normalize_observations is False: set it to True"),
        (PPO, PPO | STATISTICS, "ppo", "run does not normalise its .* is True: set it to False"),
        (PPO, PPO | {"actor.0.weight": np.zeros((8, 4))}, "ppo", r"its actor.0.weight has .*\(8, 3\), .* \(8, 4\)"),
        (PPO, PPO | {"value": np.zeros(2)}, "ppo", r"its value does not exist, but .* it has the shape \(2,\)"),
        (PPO | {"value": np.zeros(2)}, PPO, "ppo", r"its value has the shape \(2,\), but .* it does not exist"),
        ({"own.weight": np.zeros(2)}, PPO, "ppo", "its actor.0.weight does not exist"),
    ],
)
def test_what_does_not_fit_is_named(weights: dict[str, Any], expected: dict[str, Any], agent: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        check_policy(weights, expected, "run", agent)
