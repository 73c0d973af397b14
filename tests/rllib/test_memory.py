"""Policies with memory: what the learner replays is what the env runners did."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.evaluation.postprocessing import Postprocessing

from rlhf_ray.policies import ActorCriticNetwork
from rlhf_ray.policies.actions import best, log_probability, to_env_actions
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.agents import agent_of
from rlhf_ray.rllib.policy import STATE, CollectorPolicy, built, policy_spec
from rlhf_ray.rllib.reference import ExpertLearner, ExpertPPOConfig, ReturnScaled
from rlhf_ray.rllib.rllib_internals import learner_pipeline, local_learner
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, SettingError
from tests.whole_runs import check_resumes, running, small

VECTORS = gym.spaces.Box(-1.0, 1.0, (3,))


class Ends(gym.Env[Any, Any]):
    """Random observations; episodes end by chance, or after 20 steps."""

    observation_space = VECTORS

    def __init__(self, continuous: bool = False) -> None:
        self.action_space = gym.spaces.Box(-2.0, 2.0, (2,)) if continuous else gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), float(self.np_random.normal()), bool(self.np_random.random() < 0.04), False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)


class Watched(ExpertLearner):
    """Keeps the first minibatch of each update, with its outputs and the network before it, and how many steps there were."""

    seen: Any = None
    steps = 0

    def update(self, *arguments: Any, training_data: Any = None, **keywords: Any) -> Any:
        training_data.solve_refs()
        self.steps = sum(map(len, training_data.episodes))
        return super().update(*arguments, training_data=training_data, **keywords)

    def compute_loss_for_module(self, *, module_id: Any, config: Any, batch: Any, fwd_out: Any) -> Any:
        if self.seen is None:
            self.seen = dict(batch), fwd_out, copy.deepcopy(self.module[module_id].network)
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


@pytest.fixture(autouse=True)
def environments() -> Iterator[None]:
    for name, continuous in (("Ends-v0", False), ("EndsBox-v0", True)):
        gym.register(name, lambda continuous=continuous, **_: Ends(continuous), max_episode_steps=20)
    yield
    for name in ("Ends-v0", "EndsBox-v0"):
        del gym.registry[name]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("memory", "environment"), [("gru", "Ends-v0"), ("lstm", "EndsBox-v0")])
def test_replayed_probabilities_are_those_of_the_rollout_and_only_cut_episodes_are_bootstrapped(memory, environment):
    ppo = PPOSettings(
        memory=memory, memory_units=8, hidden=(8,), num_envs=4, rollout_length=50, minibatch_size=200, epochs=1,
        learning_rate=0.03, gae_lambda=0.0, gamma=0.9, initial_log_std=-1.0,
    )  # fmt: skip
    config = ExpertPPOConfig.from_experiment(Experiment(environment=environment, total_env_steps=10_000, ppo=ppo))
    config.learners(learner_class=Watched)
    algorithm = config.build_algo()
    learner = local_learner(algorithm.learner_group)
    with running(algorithm):
        kinds: set[str] = set()
        for iteration in range(3):
            algorithm.train()
            (seen, outputs, network), learner.seen = learner.seen, None
            real, state = seen[Columns.LOSS_MASK], seen[Columns.STATE_IN][STATE]
            space = algorithm.env_runner.env.single_action_space
            replayed = log_probability(outputs[Columns.ACTION_DIST_INPUTS], seen[Columns.ACTIONS], space)
            ratio = (replayed - seen[Columns.ACTION_LOGP])[real].exp()
            # A minibatch is as large as all of it: at most one sequence is left over by rounding.
            assert learner.steps - real.sum() <= 20
            assert (ratio - 1.0).abs().max() <= 1e-5
            # The memory matters.
            assert iteration == 0 or state[state[:, -1] > 0, :-1].abs().max() > 0.1
            for row in range(len(real)):
                steps = int(seen[Columns.SEQ_LENS][row]) - 1
                assert real[row].nonzero().squeeze(-1).tolist() == list(range(steps))
                ended = bool(seen[Columns.TERMINATEDS][row].any())
                kinds.add("continued" if state[row, -1] else "begun")
                kinds.add("terminated" if ended else "truncated" if steps == 20 else "cut")
                # With λ = 0, targets are the reward and the discounted next value: that of the last observation, with the memory
                # of the last step, unless the episode terminated.
                values = by_hand(network, seen[Columns.OBS][row, : steps + 1], state[row, :-1], bool(state[row, -1]))
                values[-1] *= not ended
                targets = seen[Columns.REWARDS][row, :steps] + 0.9 * values[1:]
                torch.testing.assert_close(seen[Postprocessing.VALUE_TARGETS][row, :steps], targets)
            # The first memory learns.
            trained = learner.module[DEFAULT_MODULE_ID].network.first_memory
            assert trained.grad.abs().min() > 0
            assert not torch.equal(trained, network.first_memory)
        assert kinds == {"continued", "begun", "terminated", "truncated", "cut"}
        seen[Columns.VF_PREDS] = seen[Columns.VF_PREDS] + 1.0  # so that values are clipped
        whole, parts = gradient(learner, seen), torch.arange(len(real)).tensor_split(3)
        shares = [real[rows].sum() / real.sum() * gradient(learner, of_rows(seen, rows)) for rows in parts]
        torch.testing.assert_close(sum(shares), whole, rtol=1e-3, atol=1e-5)  # losses are means, in any division
        # A memory's layers are the actor's and the critic's, so that the value's error counts by its targets' variance.
        large = {**seen, Postprocessing.VALUE_TARGETS: 30.0 * torch.randn(real.shape)}
        learner.clips_values = False
        expected = gradient(learner, large, PPOTorchLearner, 1 / large[Postprocessing.VALUE_TARGETS][real].var())
        torch.testing.assert_close(gradient(learner, large), expected, rtol=1e-3, atol=1e-5)
        (scaled,) = [each for each in learner_pipeline(learner).connectors if isinstance(each, ReturnScaled)]
        assert scaled.gamma == ppo.gamma  # not another return's


def of_rows(batch: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    return {name: of_rows(of, rows) if isinstance(of, dict) else of[rows] for name, of in batch.items()}


def gradient(learner: Any, batch: dict[str, Any], kind: Any = Watched, weight: Any = 1.0) -> torch.Tensor:
    """Compute the gradient of the loss of a class of learners on a minibatch, all parameters one after the other.

    ``weight`` is a factor of the value's coefficient.
    """
    module = learner.module[DEFAULT_MODULE_ID]
    outputs, config = module.forward_train(batch), learner.config.get_config_for_module(DEFAULT_MODULE_ID)
    config = config.copy(copy_frozen=False)
    config.vf_loss_coeff *= float(weight)
    arguments = {"module_id": DEFAULT_MODULE_ID, "config": config, "batch": batch, "fwd_out": outputs}
    loss = kind.compute_loss_for_module(learner, **arguments)
    found = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([each.flatten() for each in found])


def by_hand(network: ActorCriticNetwork, observations: torch.Tensor, memory: torch.Tensor, begun: bool) -> torch.Tensor:
    """Compute the values of a sequence, step by step."""
    memory = memory[None] if begun else network.first_memory[None]
    values = []
    with torch.no_grad():
        for observation in observations:
            features = network.encode(observation[None])
            memory = network.remember(features, memory)
            values.append(network.decide(features, memory)[1])
    return torch.cat(values)


def module_of(observations: gym.spaces.Box = VECTORS, actions: Any = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    given: dict[str, Any] = {"hidden": (8,), "memory": "gru", "memory_units": 6} | settings
    ppo = PPOSettings(**given)
    module = built(policy_spec(ppo), observations, actions or gym.spaces.Discrete(3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.5)
    return module


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("actions", [gym.spaces.Discrete(3), gym.spaces.Box(-2.0, 2.0, (2,))])
def test_an_episode_begins_with_the_first_memory_and_then_keeps_its_own(memory: Any, actions: Any) -> None:
    module = module_of(actions=actions, memory=memory)
    network = module.network
    observations = np.random.default_rng(0).uniform(-1, 1, (4, 2, 3)).astype(np.float32)

    def expected(steps: list[int], row: int) -> Any:
        """The deterministic action after these observations of an episode."""
        memory = network.first_memory[None]
        with torch.no_grad():
            for step in steps:
                features = network.encode(torch.as_tensor(observations[step, row][None]))
                memory = network.remember(features, memory)
            return to_env_actions(best(network.decide(features, memory)[0], actions).numpy(), actions)[0]

    policy = CollectorPolicy(module)
    for step, first in enumerate(([True, True], [False, False], [False, True], [False, False])):
        acted = policy.best(observations[step], np.array(first))
        np.testing.assert_allclose(acted[0], expected([*range(step + 1)], 0), rtol=1e-5)
        np.testing.assert_allclose(acted[1], expected([*range(2 if step > 1 else 0, step + 1)], 1), rtol=1e-5)
    # An episode at a time; actions of others are seen, too; another policy may go on with the memory.
    alone = CollectorPolicy(module).begin()
    alone.see(observations[0, 0])
    alone.act(observations[1, 0], np.random.default_rng(0))
    np.testing.assert_allclose(
        CollectorPolicy(module).begin(alone).best(observations[2, :1])[0], expected([0, 1, 2], 0), rtol=1e-5
    )
    np.testing.assert_allclose(alone.begin().best(observations[2, :1])[0], expected([2], 0), rtol=1e-5)
    made = alone.maker()()
    np.testing.assert_allclose(made.best(observations[2, :1])[0], expected([2], 0), rtol=1e-5)


def test_minibatches_too_small_for_a_sequence_are_refused() -> None:
    PPOSettings(rollout_length=64, minibatch_size=32)
    with pytest.raises(
        SettingError, match=r"ppo\.minibatch_size is 63; with ppo\.memory=gru.*whole sequences of up to 64"
    ):
        PPOSettings(rollout_length=64, minibatch_size=63, memory="gru")


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("memory", ["gru", pytest.param("user's own", marks=pytest.mark.soak)])
def test_a_run_with_memory_learns_from_preferences_and_resumes_exactly(tmp_path: Path, memory: str) -> None:
    ppo = PPOSettings(
        num_envs=2, rollout_length=150, minibatch_size=200, epochs=2, hidden=(8,), memory_units=6,
        memory="gru" if memory == "gru" else "none",
    )  # fmt: skip
    config = PreferencePPOConfig.from_experiment(
        small(
            ppo=ppo,
            total_env_steps=500 + 4 * 300 + 100,
            fragments=FragmentSettings(length=10, initial_env_steps=480, exploration_env_steps=20),
        )
    )
    if memory != "gru":
        config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=6))
    check_resumes(config, tmp_path / "checkpoint")
    if memory == "gru":
        assert agent_of(tmp_path / "checkpoint").memory_size == 6
    else:
        with pytest.raises(SettingError, match="the tools for agents look into the networks of"):
            agent_of(tmp_path / "checkpoint")
