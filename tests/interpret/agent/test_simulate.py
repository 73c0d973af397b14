"""Agents inside world models: what a simulation computes, and which paths its gradients take."""

import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from tests.interpret.agent.toy_world import LinearWorld, agent_of, context_of

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
