"""SAC's gradient steps, against autograd, torch's optimiser and targets by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform

from rlhf_ray.optim import FlatAdam
from rlhf_ray.policies.sac_update import ReplayedSteps, SACUpdate
from rlhf_ray.policies.soft_actor_critic import LOG_STD, SoftActorCriticNetwork
from rlhf_ray.settings import SettingError

OBSERVATIONS = gym.spaces.Box(np.array([-1, -np.inf, 2]), np.array([3, np.inf, 4]), dtype=np.float64)
BOX, DISCRETE = gym.spaces.Box(-2.0, 2.0, (2,)), gym.spaces.Discrete(3)
GAMMA, ALPHA = 0.9, 0.2


def network(actions: gym.Space[Any]) -> SoftActorCriticNetwork:
    torch.manual_seed(0)
    made = SoftActorCriticNetwork(OBSERVATIONS, actions, (7, 5), ALPHA)
    with torch.no_grad():  # targets that differ from the critics, and an actor with an opinion
        for parameter in [*made.targets.parameters(), *made.actor.parameters()]:
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def observations(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + 1.0


def test_log_probabilities_are_those_of_a_tanh_of_a_gaussian_even_where_tanh_is_flat() -> None:
    net, obs = network(BOX), observations(50)
    mean, log_std = net.distribution(obs).chunk(2, -1)
    noise = torch.linspace(-2.0, 2.0, 100).reshape(50, 2)
    actions, logs = net.act(obs, noise)
    before = (mean + log_std.exp() * noise).double()
    torch.testing.assert_close(actions, torch.tanh(before).float())
    tanh = TanhTransform(cache_size=1)
    expected = Normal(mean.double(), log_std.exp().double()).log_prob(before) - tanh.log_abs_det_jacobian(
        before, tanh(before)
    )
    torch.testing.assert_close(logs, expected.sum(-1).float(), rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # an actor that is certain, far out
        net.actor[-1].bias += 40.0
    assert torch.isfinite(net.act(obs)[1]).all()


def test_an_untrained_actor_acts_nearly_uniformly() -> None:
    torch.manual_seed(0)
    net, cells = SoftActorCriticNetwork(OBSERVATIONS, BOX, (64, 64), ALPHA), 200
    levels = (torch.arange(cells) + 0.5) / cells
    noise = Normal(0.0, 1.0).icdf(levels).repeat_interleave(2).reshape(cells, 2)
    for state in observations(20):
        actions = net.act(state.expand(cells, 3), noise)[0]
        # The share of actions below each, beside that of uniform ones.
        assert (levels[:, None] - (actions + 1) / 2).abs().max() < 0.05


def test_the_spread_stays_within_its_range() -> None:
    net = network(BOX)
    with torch.no_grad():
        net.actor[-1].weight *= 1e4
    log_std = net.distribution(observations(100)).chunk(2, -1)[1]
    assert log_std.min() >= LOG_STD[0]
    assert log_std.max() <= LOG_STD[1]
    assert log_std.std() > 1.0


def test_both_critics_and_their_targets_begin_independent_and_equal() -> None:
    torch.manual_seed(0)
    net = SoftActorCriticNetwork(OBSERVATIONS, BOX, (8,), 0.1)
    inputs = torch.randn(5, 5)
    values, targets = net.critics(inputs), net.targets(inputs)
    torch.testing.assert_close(values, targets)
    assert not torch.allclose(values[0], values[1])
    assert not any(parameter.requires_grad for parameter in net.targets.parameters())
    assert float(net.log_alpha.exp()) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("observed", "acted", "what"),
    [
        (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), BOX, "SAC takes vectors: set agent to ppo"),
        (OBSERVATIONS, gym.spaces.Box(-np.inf, np.inf, (1,)), "finite bounds"),
        (OBSERVATIONS, gym.spaces.MultiBinary(2), "Discrete actions, or Box actions"),
    ],
)
def test_other_spaces_are_refused_with_the_remedy(observed: Any, acted: Any, what: str) -> None:
    with pytest.raises(SettingError, match=what):
        SoftActorCriticNetwork(observed, acted, (8,), 0.1)


def test_target_entropies() -> None:
    assert network(BOX).auto_entropy == -2.0
    assert network(DISCRETE).auto_entropy == pytest.approx(0.5 * math.log(3))


TAU = 0.05


def update(net: SoftActorCriticNetwork, **changes: Any) -> SACUpdate:
    return SACUpdate(net, **({"gamma": GAMMA, "tau": TAU} | changes))


def optimizers(steps: SACUpdate, **rates: float) -> dict[str, FlatAdam]:
    return {name: FlatAdam(part, lr=rates.get(name, 0.0)) for name, part in steps.parts.items()}


def transitions(net: SoftActorCriticNetwork, n: int, seed: int = 1) -> ReplayedSteps:
    drawn = torch.Generator().manual_seed(seed)
    actions = torch.randint(3, (n,), generator=drawn) if net.discrete else torch.rand(n, 2, generator=drawn) * 2 - 1
    return ReplayedSteps(
        net.scaled(observations(n, seed)),
        actions,
        torch.randn(n, generator=drawn),
        net.scaled(observations(n, seed + 50)),
        torch.rand(n, generator=drawn) < 0.3,
    )


def critic(of: Any, which: int, inputs: Tensor) -> Tensor:
    """Critic ``which``, layer by layer."""
    for i, (weight, bias) in enumerate(zip(of.weights, of.biases, strict=True)):
        inputs = inputs @ weight[which] + bias[which]
        inputs = inputs.clamp_min(0.0) if i < len(of.weights) - 1 else inputs
    return inputs


def plain_step(
    net: SoftActorCriticNetwork, batch: ReplayedSteps, noise: Tensor, made: Any, max_norm: float | None
) -> Any:
    """The same step as its equations, with autograd and torch's Adam."""

    def policy(seen: Tensor, of_noise: Tensor) -> tuple[Tensor, Tensor]:
        outputs = net.actor(seen)
        if net.discrete:
            return outputs.softmax(-1), outputs.log_softmax(-1)
        mean, raw = outputs.chunk(2, -1)
        std = torch.where(
            net.clamps_log_std > 0, raw.clamp(-20.0, 2.0), -5.0 + 7.0 * (torch.tanh(raw) + 1.0) / 2.0
        ).exp()
        gaussian = mean + std * of_noise
        slope = TanhTransform().log_abs_det_jacobian(gaussian, torch.tanh(gaussian))
        log = Normal(mean, std).log_prob(gaussian) - slope
        return torch.tanh(gaussian), log.sum(-1, keepdim=True)

    def judge(of: Any, seen: Tensor, acted: Tensor) -> list[Tensor]:
        return [critic(of, i, seen if net.discrete else torch.cat([seen, acted], -1)) for i in (0, 1)]

    def expected(acted: Tensor, numbers: Tensor) -> Tensor:
        return (acted * numbers).sum(-1) if net.discrete else numbers[:, 0]

    def descend(name: str, loss: Tensor, parameters: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        if max_norm is not None and name != "alpha":
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        made[name].step()

    n = len(batch.rewards)
    alpha = net.log_alpha.detach().exp()
    with torch.no_grad():
        acted, logs = policy(batch.next_observations, noise[:n])
        soft = expected(acted, torch.minimum(*judge(net.targets, batch.next_observations, acted)) - alpha * logs)
        target = batch.rewards + GAMMA * torch.where(batch.terminated, 0.0, soft)
    values = judge(net.critics, batch.observations, batch.actions)
    if net.discrete:
        values = [value.gather(-1, batch.actions[:, None]) for value in values]
    of_critics = sum(((value[:, 0] - target) ** 2).mean() for value in values)
    descend("critic", of_critics, list(net.critics.parameters()))
    acted, logs = policy(batch.observations, noise[n:])
    of_actor = expected(acted, alpha * logs - torch.minimum(*judge(net.critics, batch.observations, acted))).mean()
    entropy = -expected(acted, logs).mean().detach()
    descend("actor", of_actor, list(net.actor.parameters()))
    descend("alpha", (net.log_alpha * (entropy - net.auto_entropy)).sum(), [net.log_alpha])
    with torch.no_grad():
        for to, of in zip(net.targets.parameters(), net.critics.parameters(), strict=True):
            to += TAU * (of - to)
    return [each.item() for each in (of_critics, torch.stack(values).mean(), of_actor, entropy)]


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("kind", ["squashed spread", "clamped spread", "discrete"])
def test_steps_are_those_of_autograd_and_torchs_adam(kind: str, max_norm: float | None) -> None:
    net = network(DISCRETE if kind == "discrete" else BOX).double()  # in single precision Adam makes much of rounding
    with torch.no_grad():
        if kind == "clamped spread":  # some within the range, some beyond it
            net.clamps_log_std.fill_(1.0)
            net.actor[-1].bias[2:] = torch.tensor([1.9, -19.8])
    other = copy.deepcopy(net)
    rates = {"actor": 3e-3, "critic": 1e-2, "alpha": 2e-2}
    steps = update(net, max_norm=max_norm)
    ours = optimizers(steps, **rates)
    parts = {"actor": other.actor.parameters(), "critic": other.critics.parameters(), "alpha": [other.log_alpha]}
    made = {name: torch.optim.Adam(list(part), lr=rates[name]) for name, part in parts.items()}
    torch.manual_seed(3)
    for number in range(6):
        rows, noise = transitions(net, 40, number), torch.randn(80, net.drawn).double()
        batch = ReplayedSteps(*(column.double() if column.is_floating_point() else column for column in rows))
        metrics = steps.step(batch, noise, ours)
        expected = plain_step(other, batch, noise, made, max_norm)
        torch.testing.assert_close(metrics, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)
        for name, part in steps.parts.items():
            theirs = torch.cat([p.grad.flatten() for group in made[name].param_groups for p in group["params"]])
            torch.testing.assert_close(part.gradient, theirs, rtol=1e-5, atol=1e-7)
    for (name, value), theirs in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, theirs, rtol=1e-5, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


def test_the_discrete_actors_optimum_is_the_softmax_of_the_lower_values() -> None:
    net = network(DISCRETE)
    batch = transitions(net, 1)
    lower = torch.minimum(*(critic(net.critics, i, batch.observations) for i in (0, 1)))
    best = (lower / ALPHA).softmax(-1)
    steps = update(net)
    made = optimizers(steps, actor=0.02)
    for _ in range(400):
        _, _, loss, entropy = steps.step(batch, torch.empty(2, 0), made)
    torch.testing.assert_close(net.distribution(observations(1)).softmax(-1), best, atol=5e-3, rtol=0.0)
    assert float(entropy) == pytest.approx(float(-(best * best.log()).sum()), abs=0.02)
    # The least possible loss is minus α times the log of the partition sum.
    assert float(loss) == pytest.approx(float(-ALPHA * (lower / ALPHA).logsumexp(-1)), abs=1e-3)


def test_the_temperature_moves_the_entropy_towards_its_target() -> None:
    for target, sign in ((-50.0, -1), (50.0, 1)):
        net = network(gym.spaces.Box(-1.0, 1.0, (2,)))
        steps = update(net, target_entropy=target)
        steps.step(transitions(net, 5), torch.randn(10, 2), optimizers(steps, alpha=0.1))
        assert math.copysign(1, float(net.log_alpha) - math.log(ALPHA)) == sign
