"""PPOLearner's gradient steps against RLlib's own update, on the same rollouts."""

import copy
import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from rlhf_ray import envs
from rlhf_ray.rllib.advantages import SteadyAdvantages
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.learned_reward import RewardConnector
from rlhf_ray.rllib.learner import STEADY, PPOLearner, overridden
from rlhf_ray.rllib.reference import ExpertPPOConfig, ReferencePPOConfig
from rlhf_ray.settings import Experiment, PPOSettings


class ReadsNext(RewardConnector):
    """Leaves the rewards as they are."""

    reads_next_observations = True

    def __call__(self, *, batch: dict[str, Any], **others: Any) -> dict[str, Any]:
        return batch


def configured(kind: type, environment: str, *, own_steps: bool = True, **ppo: Any) -> Any:
    """A configuration whose learner takes our gradient steps, or, since it overrides the losses, RLlib's."""
    of = PPOSettings(
        **{
            "num_envs": 4,
            "rollout_length": 50,
            "epochs": 3,
            "minibatch_size": 50,
            "entropy_coefficient": 0.01,
            "precision": "float32",
            **ppo,
        }
    )
    config = kind.from_experiment(Experiment(environment=environment, ppo=of))  # type: ignore[attr-defined]
    if not own_steps:
        base: Any = config.get_default_learner_class()

        class Overriding(base):  # type: ignore[misc]
            def compute_losses(self, **arguments: Any) -> Any:
                return super().compute_losses(**arguments)

        config.learners(learner_class=Overriding)
    config.validate()
    return config


def learner_of(config: Any, environment: str) -> Any:
    torch.manual_seed(0)
    return config.build_learner(env=envs.make_env(environment))


def sampled(config: Any, learner: Any, runner: type, calls: int = 1) -> list[Any]:
    """Rollouts of the learner's policy; the same ones for the same configuration and kind of runner."""
    torch.manual_seed(3)
    np.random.seed(3)
    of = runner(config=config, worker_index=0, num_workers=0)
    of.module.set_state(learner.module[DEFAULT_MODULE_ID].get_state(inference_only=True))
    for _ in range(calls):
        rollout = of.sample()
    of.stop()
    return list(rollout)


def updated(learner: Any, rollouts: list[Any], size: int, epochs: int = 3) -> dict[str, Any]:
    """Metrics of an update without shuffling."""
    results = learner.update(
        training_data=TrainingData(episodes=copy.deepcopy(rollouts)),
        timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 0},
        num_epochs=epochs,
        minibatch_size=size,
    )
    return {name: stats.peek() for name, stats in results[DEFAULT_MODULE_ID].items()}


def test_a_learner_with_an_optimizer_of_its_own_takes_rllib_s_steps() -> None:
    config: Any = configured(ReferencePPOConfig, "Pendulum-v1")

    class Descending(PPOLearner):
        def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
            params = self.get_parameters(self.module[module_id])
            optimizer = torch.optim.SGD(params, lr=0.1)
            self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=0.1)

    assert overridden(Descending) == "Descending overrides configure_optimizers_for_module"
    learner = learner_of(config.copy(copy_frozen=False).learners(learner_class=Descending), "Pendulum-v1")
    assert learner.own_steps is None
    assert type(learner.get_optimizer(DEFAULT_MODULE_ID)) is torch.optim.SGD


@pytest.mark.parametrize(
    ("kind", "environment"),
    [
        (ReferencePPOConfig, "CartPole-v1"),
        (ExpertPPOConfig, "Pendulum-v1"),
        pytest.param(ReferencePPOConfig, "Pendulum-v1", marks=pytest.mark.slow),
        pytest.param(ExpertPPOConfig, "CartPole-v1", marks=pytest.mark.slow),
        pytest.param(ReferencePPOConfig, "rlhf_ray/MovingDot-v0", marks=pytest.mark.slow),
        pytest.param(ExpertPPOConfig, "rlhf_ray/MovingDot-v0", marks=pytest.mark.slow),
    ],
)
def test_weights_and_metrics_are_those_of_rllib_s_update(kind: type, environment: str) -> None:
    theirs, ours = (configured(kind, environment, own_steps=own) for own in (False, True))
    plain, own = learner_of(theirs, environment), learner_of(ours, environment)
    assert plain.own_steps is None
    assert overridden(theirs.learner_class) == "Overriding overrides compute_losses"
    assert own.own_steps is not None
    assert overridden(ours.learner_class) is None
    for learner in (plain, own):
        learner.steady.variance = 1e4  # more was at stake before
    episodes = sampled(theirs, plain, EnvRunner)
    steps = sum(map(len, episodes))
    before = {name: np.copy(of) for name, of in plain.module[DEFAULT_MODULE_ID].get_state().items()}
    # RLlib's minibatch has a masked row more for each episode.
    expected = updated(plain, episodes, steps + len(episodes))
    found = updated(own, episodes, steps)
    assert 9e3 < own.steady.variance == pytest.approx(plain.steady.variance, rel=1e-3)
    for name, weights in plain.module[DEFAULT_MODULE_ID].get_state().items():
        apart = np.linalg.norm(own.module[DEFAULT_MODULE_ID].get_state()[name] - weights)
        # Adam turns the last bits of a gradient near 0 into whole steps of single weights: compare the update as a whole.
        assert apart <= 5e-3 * np.linalg.norm(weights - before[name]) + 1e-6, name
    assert set(found) == {*expected, "policy_kl", "pace"}  # RLlib has neither
    for name in (
        "total_loss",
        "policy_loss",
        "vf_loss_unclipped",
        "entropy",
        "gradients_default_optimizer_global_norm",
    ):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=2e-3, abs=1e-4), name


@pytest.mark.slow
def test_an_image_s_encoder_computes_in_bfloat16_where_the_setting_says_so() -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        config = configured(ReferencePPOConfig, "rlhf_ray/MovingDot-v0", precision=precision)
        learner = learner_of(config, "rlhf_ray/MovingDot-v0")
        rollouts = sampled(config, learner, ArrayEnvRunner)  # in float32 in either case
        losses[precision] = float(updated(learner, rollouts, 200, epochs=1)["vf_loss_unclipped"])
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


@pytest.mark.parametrize("environment", ["Pendulum-v1", pytest.param("CartPole-v1", marks=pytest.mark.slow)])
def test_rollouts_as_arrays_give_the_rows_of_episodes(environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(ReferencePPOConfig, environment)
    episodes, arrays = (
        sampled(config, learner_of(config, environment), kind, 2) for kind in (EnvRunner, ArrayEnvRunner)
    )
    assert len(arrays) == 1
    rollout = arrays[0]
    # The same steps for both: episodes made of the arrays.
    pieces = [
        (rollout.observations[rows.start : rows.stop + 1, at], rollout.actions[rows, at])
        for at, rows in rollout.pieces()
    ]
    learner = learner_of(config, environment)
    monkeypatch.setattr(
        "rlhf_ray.rllib.learner.learner_pipeline", lambda learner: SimpleNamespace(connectors=[ReadsNext()])
    )
    columns, rows = learner._rows_of_arrays(arrays)
    assert len(rows) == len(rollout) >= 200
    assert len(columns["obs"]) == len(rollout)
    assert sum(map(len, episodes)) >= 200
    every = np.concatenate([seen[:-1] for seen, _ in pieces])
    assert sorted(map(tuple, every.tolist())) == sorted(map(tuple, columns["obs"].numpy().tolist()))
    # Advantages: the definition, for each piece, from values and rewards of the same learner.
    rewards = columns["rewards"].numpy()
    at = {tuple(each): number for number, each in enumerate(columns["obs"].numpy().tolist())}
    gamma, decay = config.gamma, config.lambda_
    for (copy_, of_rows), (seen, _) in zip(rollout.pieces(), pieces, strict=True):
        with torch.no_grad():
            network = learner.own_steps.network
            values = network.critic(network.encode(torch.as_tensor(seen))).squeeze(-1).numpy()
        running = 0.0
        for step in range(len(seen) - 2, -1, -1):
            number = at[tuple(seen[step].tolist())]
            np.testing.assert_array_equal(columns["new_obs"][number].cpu(), seen[step + 1])
            last = step == len(seen) - 2 and rollout.terminated[of_rows.stop - 1, copy_]
            error = rewards[number] + (0.0 if last else gamma * values[step + 1]) - values[step]
            running = error + gamma * decay * running
            assert float(rows.targets[number]) == pytest.approx(running + values[step], rel=1e-3, abs=1e-3)
    other = dataclasses.replace(rollout, rewards=2 * rollout.rewards)  # of another env runner
    targets = [learner._rows_of_arrays(of)[1].targets for of in ([rollout, other], [rollout], [other])]
    torch.testing.assert_close(targets[0], torch.cat(targets[1:]))
    assert float(rows.advantages.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(rows.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-3)
    learner.steady.variance = 4e6
    share = float((rows.targets - rows.values).std(correction=0)) / math.sqrt(learner.steady.variance)
    _, less = learner._rows_of_arrays(arrays)
    assert float(less.advantages.std(correction=0)) == pytest.approx(share / math.sqrt(0.9), rel=0.01)
    assert share < 0.5


def test_advantages_keep_the_scale_of_recent_batches() -> None:
    steady, rng = SteadyAdvantages(), np.random.default_rng(0)
    spreads = [2.0, 0.02, 0.0, 5.0, 1.0]
    variance = None
    for spread in spreads:
        batch = torch.as_tensor(spread * rng.standard_normal(50) + 7.0)
        own = float(np.var(batch.numpy()))
        variance = own if variance is None else 0.9 * variance + 0.1 * own
        assert steady.share(batch) == pytest.approx(min(1.0, math.sqrt(own / variance)))
    again = SteadyAdvantages()
    again.set_state(steady.get_state())
    assert again.share(batch) == steady.share(batch) < 1
    assert SteadyAdvantages().share(torch.zeros(3)) == 1.0


def test_the_recent_scale_is_part_of_the_learner_s_state() -> None:
    config = configured(ReferencePPOConfig, "CartPole-v1")
    learner, other = (learner_of(config, "CartPole-v1") for _ in range(2))
    learner.steady.variance = 3.0
    other.set_state(learner.get_state())
    assert other.steady.variance == 3.0
    assert STEADY not in learner.get_state(components=COMPONENT_RL_MODULE)


def test_a_state_of_the_optimiser_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_off: list[Any] = []
    monkeypatch.setattr("rlhf_ray.rllib.learner.take_off", lambda data, of: taken_off.append(of))
    config = configured(ReferencePPOConfig, "Pendulum-v1")
    first, second = (learner_of(config, "Pendulum-v1") for _ in range(2))
    rollouts, take, taken = sampled(config, first, ArrayEnvRunner), first._take_steps, []
    first._take_steps = lambda rows, index: (taken.append(tuple(index.shape)), take(rows, index))
    updated(first, rollouts, 100)
    assert (taken, first._weights_seq_no) == ([(3 * 2, 100)], 1)  # three passes over 200 steps are one update
    assert taken_off == [first.config]  # the true rewards, if it is to
    second.set_state(first.get_state())
    for learner in (first, second):
        updated(learner, rollouts, 100)
    ours, theirs = (learner.module[DEFAULT_MODULE_ID].get_state() for learner in (first, second))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_running_statistics_see_what_the_policy_saw() -> None:
    config = configured(ReferencePPOConfig, "Pendulum-v1", normalize_observations=True)
    learner = learner_of(config, "Pendulum-v1")
    rollouts = sampled(config, learner, ArrayEnvRunner)
    updated(learner, rollouts, 100)
    statistics = learner.own_steps.network.statistics
    assert int(statistics.count) == 4 * 51  # the observation after the last step too
    np.testing.assert_allclose(statistics.mean[:3].numpy(), rollouts[0].observations.mean((0, 1)), atol=1e-4)


@pytest.mark.parametrize(
    ("lengths", "size", "given"), [([25] * 8, 100, 104), ([25] * 8, 200, 208), ([10, 20, 30], 20, 21)]
)
def test_minibatches_of_sequences_have_the_step_that_rllib_adds_to_each(lengths, size, given):
    """Four rollouts of 25 steps are 104 rows; 60 steps in 3 episodes are 63 rows, of which a third is 21."""
    module = SimpleNamespace(is_stateful=lambda: True)
    learner: Any = SimpleNamespace(module={DEFAULT_MODULE_ID: module})
    rollouts: Any = SimpleNamespace(episodes=[range(length) for length in lengths])
    assert PPOLearner._with_added_steps(learner, size, rollouts) == given
    module.is_stateful = lambda: False
    assert PPOLearner._with_added_steps(learner, size, rollouts) == size
    assert PPOLearner._with_added_steps(learner, None, rollouts) is None
