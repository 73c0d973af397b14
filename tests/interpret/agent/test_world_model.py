"""The world model: every parameter learns, training resumes to the same bytes, and a model knows what it was made from."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.world_model import training
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape, load_world
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, as_policy_actions, read, train_world
from tests.agents.made import EpisodeWindows, network_agent
from tests.interpret.agent.linear_world import IMAGE, random_episodes

torch.set_num_threads(1)
SMALL = WorldShape(memory=8, groups=1, classes=6, channels=16, shared=12)
QUICK = WorldTraining(batches=6, windows=4, length=6, save_every=3, free_nats=0.0)


def episodes_in(agent: NetworkAgent, n: int = 12, steps: int = 10) -> Episodes:
    """Random episodes; the shortest has one step."""
    lengths = np.random.default_rng(0).integers(1, steps + 1, n)
    lengths[:2] = 1, steps
    return replace(random_episodes(agent, n, steps), lengths=lengths)


CASES = {
    "image": (IMAGE, gym.spaces.Discrete(3)),
    "odd image, continuous": (gym.spaces.Box(0, 255, (17, 42, 1), np.uint8), gym.spaces.Box(-2.0, 2.0, (2,))),
    "vector": (gym.spaces.Box(-np.inf, np.inf, (5,)), gym.spaces.Discrete(3)),
    "table, continuous": (gym.spaces.Box(-1.0, 1.0, (2, 3)), gym.spaces.Box(-2.0, 2.0, (2,))),
}


def made(case: str) -> tuple[NetworkAgent, RecurrentWorld]:
    agent = network_agent(*CASES[case])
    return agent, RecurrentWorld(agent.observation_space, agent.action_space, SMALL, agent.digest)


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_learns_and_simulations_run(case: str) -> None:
    agent, world = made(case)
    episodes = episodes_in(agent)
    windows = EpisodeWindows(episodes, QUICK.length)
    torch.nn.init.normal_(world.rewarder.weight)  # zero at first, so that nothing behind them would have a gradient yet
    torch.nn.init.normal_(world.ender.weight)
    batch = read(windows[range(QUICK.windows)], agent.action_space)
    training._losses(world, batch, *training._draws(world, QUICK, 0, "cpu"), QUICK)[0].backward()
    idle = [n for n, p in world.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert idle == []

    trained = train_world(agent, windows, WorldTraining(batches=2, windows=4, length=6), shape=SMALL)
    whole = np.flatnonzero(episodes.lengths >= 3)
    context = torch.as_tensor(episodes.observations[whole, :3])
    actions = as_policy_actions(episodes.actions[whole, :2], agent.action_space)
    simulated = simulate(trained, agent, context, actions, torch.zeros(len(whole), agent.memory_size), 3)
    assert simulated.observations.shape == (len(whole), 4, *agent.observation_space.shape)
    assert simulated.states.shape == (len(whole), 4, trained.size)
    for part in (simulated.observations, simulated.rewards, simulated.ends, simulated.values):
        assert part.isfinite().all()
    gradients = simulated.gradients(simulated.rewards[:, 2])
    assert gradients["states"][:, 0].abs().max() > 0


def test_a_state_is_the_same_alone_and_in_a_window() -> None:
    agent, world = made("image")
    batch = read(episodes_in(agent), agent.action_space)
    unrolled = world.unroll(batch.observations, batch.actions)
    torch.testing.assert_close(world.begin(batch.observations[:, :3], batch.actions[:, :2]), unrolled.states[:, 2])
    memory = world.cells * SMALL.memory  # the same memory follows from the same state; its latents are the prior's
    following = world.next(unrolled.states[:, 2], batch.actions[:, 2])
    torch.testing.assert_close(following[:, :memory], unrolled.states[:, 3, :memory])
    latents = following[:, memory:].view(len(following), world.cells, SMALL.groups, -1)
    torch.testing.assert_close(latents, unrolled.prior[:, 2].exp())  # all of them, not the most likely one


def test_predicted_steps_of_a_window_are_those_of_a_simulation() -> None:
    agent, world = made("image")
    batch = read(episodes_in(agent), agent.action_space)
    predicted = torch.arange(batch.real.shape[1]).expand_as(batch.real) >= 3
    seen = world.unroll(batch.observations, batch.actions).states
    read_only, mixed = (
        world.unroll(batch.observations, batch.actions, None, predicted, in_states).states
        for in_states in (False, True)
    )
    state, memory = seen[:, 2], world.cells * SMALL.memory
    for t in range(3, batch.real.shape[1]):
        state = world.next(state, batch.actions[:, t - 1])
        torch.testing.assert_close(mixed[:, t], state)
    torch.testing.assert_close(mixed[:, :3], seen[:, :3])
    torch.testing.assert_close(read_only[..., :memory], mixed[..., :memory])
    torch.testing.assert_close(read_only[..., memory:], seen[..., memory:])


def test_a_stopped_training_goes_on_to_the_same_bytes(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    agent = network_agent(*CASES["image"])
    windows = EpisodeWindows(episodes_in(agent), QUICK.length)
    whole = train_world(agent, windows, QUICK, shape=SMALL)

    class StoppedError(Exception):
        pass

    rate = training._rate

    def stop(number: int, batches: int) -> float:
        if number == 4:
            raise StoppedError
        return rate(number, batches)

    monkeypatch.setattr(training, "_rate", stop)
    with pytest.raises(StoppedError):
        train_world(agent, windows, QUICK, shape=SMALL, unfinished=tmp_path)
    begun = []
    monkeypatch.setattr(training, "_rate", lambda number, batches: begun.append(number) or rate(number, batches))
    resumed = train_world(agent, windows, QUICK, shape=SMALL, unfinished=tmp_path)

    assert begun == [3, 4, 5]  # from the checkpoint on
    assert resumed.digest == whole.digest
    other = train_world(agent, windows, replace(QUICK, seed=1), shape=SMALL, unfinished=tmp_path)
    assert other.digest != whole.digest
    assert begun[3:] == [0, 1, 2, 3, 4, 5]  # another training's checkpoint is no use


def test_padding_teaches_nothing() -> None:
    agent, world = made("image")
    batch = read(EpisodeWindows(episodes_in(agent), 6)[range(6)], agent.action_space)
    assert not batch.real.all()
    draws = torch.zeros(6, 6, world.cells, SMALL.groups, SMALL.classes), torch.rand(6, 6) < 0.5
    other = torch.where(batch.real[:, :, None, None, None], batch.observations, torch.full_like(batch.observations, 99))
    padded = replace(batch, observations=other)
    torch.testing.assert_close(*(training._losses(world, each, *draws, QUICK)[1] for each in (batch, padded)))
    rows = np.flatnonzero(episodes_in(agent).terminated)
    ends = read(episodes_in(agent), agent.action_space).ends
    assert ends.sum() == len(rows)
    assert (ends[rows, episodes_in(agent).lengths[rows] - 1] == 1).all()


def test_a_model_knows_what_it_was_made_from(tmp_path) -> None:  # type: ignore[no-untyped-def]
    agent, world = made("image")
    world.about = {"environment": "Squares-v0"}
    world.save(tmp_path)

    loaded = load_world(tmp_path, agent=agent)
    assert loaded.digest == world.digest
    assert loaded.about == world.about
    assert not any(p.requires_grad for p in loaded.parameters())
    with pytest.raises(SettingError, match=r"is of the agent .*, not of agent, untrained"):
        load_world(tmp_path, agent=agent.fresh(5))
    with pytest.raises(SettingError, match="holds no world model"):
        load_world(tmp_path / "none")
    with torch.no_grad():
        next(world.parameters()).view(-1)[0] += 1e-6
    assert world.digest != loaded.digest
    world.save(tmp_path / "other")
    weights = (tmp_path / "world.safetensors").read_bytes()
    (tmp_path / "world.safetensors").write_bytes((tmp_path / "other" / "world.safetensors").read_bytes())
    with pytest.raises(SettingError, match=r"its weights are not those of"):
        load_world(tmp_path)
    (tmp_path / "world.safetensors").write_bytes(weights)
    about = json.loads((tmp_path / "world.json").read_text())
    (tmp_path / "world.json").write_text(json.dumps({**about, "about": {"environment": "Circles-v0"}}))
    with pytest.raises(SettingError, match="is damaged"):
        load_world(tmp_path)
    (tmp_path / "world.json").write_text("{")
    with pytest.raises(SettingError, match="can't be read"):
        load_world(tmp_path)


def test_rewards_of_any_size_are_told_exactly_by_two_bins() -> None:
    agent, world = made("vector")
    episodes = episodes_in(agent)
    episodes.rewards[:] *= 1000.0
    training._look(world, EpisodeWindows(episodes, 6), QUICK)
    rewards = torch.as_tensor(episodes.rewards, dtype=torch.float32)
    torch.testing.assert_close(world.reward_targets(rewards) @ world.reward_bins, rewards, rtol=1e-4, atol=1e-2)
    assert ((world.reward_targets(rewards) > 0).sum(-1) <= 2).all()
