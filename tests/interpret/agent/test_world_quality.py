"""The quality of world models: errors and baselines whose values are known, masks, and how far to trust a model."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import plain
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape
from rlhf_ray.interpret.agent.world_model.quality import measure, valid_horizon
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.study.figures import values_of
from tests.agents.made import episodes as episodes_of
from tests.agents.made import network_agent
from tests.interpret.agent.toy_world import LinearWorld, agent_of, context_of

torch.set_num_threads(1)


def own_episodes(world: LinearWorld, agent: NetworkAgent, n: int = 20, steps: int = 12) -> Episodes:
    """Episodes that the world itself makes, so that it is perfect: its context is its own too."""
    with torch.no_grad():
        made = simulate(world, agent, *context_of(world, agent, n), steps)
    box = isinstance(agent.action_space, gym.spaces.Box)
    actions = made.actions.numpy() if box else made.actions.argmax(-1).numpy()
    lengths = np.random.default_rng(0).integers(4, steps + 1, n)
    computed = {name: getattr(made, name).numpy() for name in ("observations", "memory", "rewards")}
    computed |= {name: getattr(made, name)[:, :steps].numpy() for name in ("logits", "values")}
    return episodes_of(n, steps, actions=actions, lengths=lengths, **computed)


class Remembering(LinearWorld):
    """A `LinearWorld` whose state is read off its observations exactly."""

    def __init__(self, **options):  # type: ignore[no-untyped-def]
        super().__init__(size=3, **options)
        self.seen = torch.eye(3)

    def begin(self, observations, actions):  # type: ignore[no-untyped-def]
        return observations[:, -1].float()


@pytest.mark.parametrize("box", [False, True])
def test_a_perfect_model_is_perfect_and_baselines_are_not(box: bool) -> None:
    world, agent = Remembering(actions=2 if box else 4), agent_of(box=box)
    quality = measure(world, agent, own_episodes(world, agent), steps=6, starts=2)
    assert np.nanmax(quality.errors["model"].mean) < 1e-9
    assert quality.errors["copy_last"].mean[0] == 0
    for name in ("copy_last", "mean_frame"):
        assert (quality.errors[name].mean[1:] > 1e-3).all()
    assert quality.errors["shuffled_actions"].mean[1:].max() > 1e-4
    assert (quality.agreement.mean == 1).all()
    np.testing.assert_allclose(quality.memory.mean, 1.0, atol=1e-5)
    assert quality.valid_horizon == 6
    assert quality.reward > 0.99
    same = measure(world, agent, own_episodes(world, agent), steps=6, starts=2)
    assert plain(values_of(same)) == plain(values_of(quality))


class Constant:
    """A world that shows ``shown`` whatever happens."""

    size, context, digest, agent = 1, 3, "constant", "any"

    def __init__(self, shown: float):
        self.shown = shown

    def begin(self, observations, actions):  # type: ignore[no-untyped-def]
        return torch.zeros(len(observations), 1)

    def next(self, state, actions):  # type: ignore[no-untyped-def]
        return state

    def observe(self, state):  # type: ignore[no-untyped-def]
        return torch.full((len(state), 16, 16, 3), self.shown)

    def reward(self, state):  # type: ignore[no-untyped-def]
        return state[:, 0]

    end = reward


def test_errors_on_constant_videos_are_those_on_paper() -> None:
    agent = network_agent(gym.spaces.Box(0, 255, (16, 16, 3), np.uint8), gym.spaces.Discrete(2), "none")
    n, steps = 4, 8
    shades = np.array([0, 0, 102, 102], np.uint8)  # mean 51: a fifth of white from each
    seen = np.broadcast_to(shades[:, None, None, None, None], (n, steps + 1, 16, 16, 3)).copy()
    episodes = episodes_of(n, steps, observations=seen, lengths=np.array([steps, 4, steps, 4]))
    for i in range(n):
        episodes.observations[i, episodes.lengths[i] + 1 :] = 255  # padding, which must not count
    weight = episodes.lengths + 1.0
    mean = float((shades * weight).sum() / weight.sum())
    quality = measure(Constant(51.0), agent, episodes, steps=5)
    # Long episodes reach every step, short ones the first steps only; both shades are equally frequent among them.
    np.testing.assert_allclose(quality.errors["model"].mean, 0.04, rtol=1e-5)
    np.testing.assert_allclose(quality.errors["copy_last"].mean, 0.0, atol=1e-9)
    expected = (((shades - mean) / 255.0) ** 2).mean()
    np.testing.assert_allclose(quality.errors["mean_frame"].mean, expected, rtol=1e-4)
    np.testing.assert_allclose(quality.errors["shuffled_actions"].mean, 0.04, rtol=1e-5)
    assert quality.memory is None
    assert np.isnan(quality.reward)


def test_the_valid_horizon_ends_where_the_model_stops_helping() -> None:
    ones = np.ones(6)
    agreement = np.array([1.0, 0.9, 0.8, 0.64, 0.9, 0.9])
    assert valid_horizon(0.1 * ones, ones, agreement, 0.6) == 2  # 0.64 does not exceed 0.65
    assert valid_horizon(np.array([0.1, 0.1, 1.0, 0.1, 0.1, 0.1]), ones, ones, 0.6) == 1
    assert valid_horizon(0.1 * ones, ones, ones, 0.99) == 5  # less than 5 points are left above the majority
    assert valid_horizon(0.1 * ones, ones, np.full(6, np.nan), 0.0) == 5  # no action to compare
    assert valid_horizon(2.0 * ones, ones, ones, 0.5) == 0


def test_short_episodes_are_refused_and_one_is_enough() -> None:
    world, agent = Remembering(), agent_of()
    episodes = own_episodes(world, agent, n=1)
    assert measure(world, agent, episodes, steps=3).windows == 1
    episodes.lengths[:] = 2
    with pytest.raises(SettingError, match="No episode has 4 observations"):
        measure(world, agent, episodes)


def test_an_untrained_model_is_not_trusted() -> None:
    agent, shape = agent_of(), WorldShape(memory=8, groups=2, classes=4, channels=16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        world = RecurrentWorld(agent.observation_space, agent.action_space, shape, "any")
    world.middle += 5.0
    assert measure(world, agent, own_episodes(LinearWorld(), agent), steps=4).valid_horizon == 0
