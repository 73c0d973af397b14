"""World models: what they learn and are made of, agents inside them and their gradients, and how far to trust them."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import plain
from rlhf_ray.interpret.agent.world_model import training
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape, load_world
from rlhf_ray.interpret.agent.world_model.quality import measure, valid_horizon
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, as_policy_actions, read, train_world
from rlhf_ray.study.figures import values_of
from tests.agents.made import EpisodeWindows, network_agent
from tests.agents.made import episodes as episodes_of
from tests.interpret.agent.worlds import IMAGE, LinearWorld, agent_of, context_of, random_episodes

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


torch.set_num_threads(1)
STEPS = 4


def test_a_simulation_is_the_agent_and_the_world_in_turn() -> None:
    world, agent = LinearWorld(), agent_of()
    observations, actions, memory = context_of(world, agent, 3)

    made = simulate(world, agent, observations, actions, memory, STEPS)

    state = world.begin(observations, actions)
    for t in range(STEPS + 1):
        step = agent.step(world.observe(state), memory)
        torch.testing.assert_close(made.observations[:, t], world.observe(state))
        torch.testing.assert_close(made.memory[:, t], memory)
        torch.testing.assert_close(made.logits[:, t], step.logits)
        torch.testing.assert_close(made.values[:, t], step.value)
        if t < STEPS:
            action = torch.nn.functional.one_hot(step.logits.argmax(-1), 4).float()
            assert torch.equal(made.actions[:, t], action)  # exactly one-hot
            state, memory = world.next(state, action), step.memory
            torch.testing.assert_close(made.rewards[:, t], world.reward(state))
            torch.testing.assert_close(made.ends[:, t], world.end(state))


def test_open_loop_takes_the_given_actions_and_closed_loop_repeats_itself() -> None:
    world, agent = LinearWorld(), agent_of()
    context = context_of(world, agent, 3)
    closed = simulate(world, agent, *context, STEPS)

    opened = simulate(world, agent, *context, STEPS, given=closed.actions.detach())
    other = simulate(world, agent, *context, STEPS, given=closed.actions.detach().roll(1, -1))

    assert torch.equal(opened.states, closed.states)
    assert not torch.allclose(other.states[:, 1:], closed.states[:, 1:])
    with pytest.raises(SettingError, match="4 steps need 4 given actions, not 2"):
        simulate(world, agent, *context, STEPS, given=closed.actions[:, :2])


def test_without_the_path_of_actions_values_stay_and_gradients_lose_it() -> None:
    world, agent = LinearWorld(), agent_of()
    context = context_of(world, agent, 8)
    whole, without = (simulate(world, agent, *context, 1, through_actions=on) for on in (True, False))
    for name in ("values", "logits", "states", "actions"):
        assert torch.equal(getattr(whole, name), getattr(without, name))
    assert not without.gradients(without.rewards[:, 0])["memory"][:, 0].any()
    # The gradient of a one-hot action is that of the log-probabilities, row by row.
    logits = whole.logits[:, 0].detach().requires_grad_()
    (expected,) = torch.autograd.grad((logits.log_softmax(-1) @ world.push @ world.rewarded).sum(), logits)
    memory = whole.memory[:, 0].detach().requires_grad_()
    after = agent.network.remember(agent.network.encode(whole.observations[:, 0].detach()), memory)
    (wanted,) = torch.autograd.grad(after, memory, expected @ agent.network.actor.weight)
    torch.testing.assert_close(whole.gradients(whole.rewards[:, 0])["memory"][:, 0], wanted, atol=1e-6, rtol=1e-4)


def test_gradients_agree_with_differences() -> None:
    world, agent = LinearWorld(), agent_of()
    observations, actions, memory = context_of(world, agent, 8)
    made = simulate(world, agent, observations, actions, memory, 0)
    found = made.gradients(made.values[:, 0])["memory"][:, 0]
    for unit in range(agent.memory_size):
        by = torch.zeros(agent.memory_size)
        by[unit] = 1e-2
        up, down = (simulate(world, agent, observations, actions, memory + s * by, 0).values[:, 0] for s in (1, -1))
        assert (((up - down) / 2e-2 - found[:, unit]).abs() <= 1e-2 * found.abs().amax(1)).all()


def test_continuous_actions_are_the_mean_within_bounds_and_differentiable() -> None:
    world, agent = LinearWorld(actions=2), agent_of(box=True)
    context = context_of(world, agent, 6)
    made = simulate(world, agent, *context, STEPS)
    assert torch.equal(made.actions, made.logits[:, :STEPS, :2].clamp(-1.0, 1.0))
    assert made.gradients(made.rewards[:, 0])["memory"][:, 0].abs().max() > 0


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_any_memory(memory: str) -> None:
    world, agent = LinearWorld(), agent_of(memory)
    made = simulate(world, agent, *context_of(world, agent, 2), STEPS)
    gradients = made.gradients(made.values[:, STEPS])
    assert gradients["memory"].shape == (2, STEPS + 1, agent.memory_size)
    assert gradients["states"][:, 0].abs().max() > 0


def test_a_simulation_starts_from_any_state_and_needs_no_steps() -> None:
    world, agent = LinearWorld(), agent_of()
    context = context_of(world, agent, 2)
    first = simulate(world, agent, *context, 2)
    rest = simulate(world, agent, context[0], context[1], first.memory[:, 1], 1, start=first.states[:, 1])
    torch.testing.assert_close(rest.values, first.values[:, 1:])
    only = simulate(world, agent, *context, 0)
    assert only.actions.shape == (2, 0, 4)
    assert only.rewards.shape == (2, 0)
    assert only.values.shape == (2, 1)
    with torch.no_grad():
        assert not simulate(world, agent, *context, 2).values.requires_grad


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
