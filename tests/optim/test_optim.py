"""Parts of a pass on several cores: their order, their modes, and a gradient that no number of cores changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn

from rlhf_ray import optim
from rlhf_ray.optim import add_gradients, in_parallel, multiply
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import Experiment, RewardModelSettings


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def have(count: int) -> None:
        monkeypatch.setattr(optim, "usable_cores", lambda: count)

    return have


def test_parts_are_side_by_side_and_in_their_order(cores: Callable[[int], None]) -> None:
    both = threading.Barrier(2, timeout=10.0)

    def work(part: int) -> tuple[int, str]:
        both.wait()  # only two at once get on
        return part, threading.current_thread().name

    cores(2)
    found = list(in_parallel(work, range(4)))
    assert [part for part, _ in found] == [0, 1, 2, 3]
    assert len({thread for _, thread in found}) == 2


@pytest.mark.parametrize(("count", "threads", "parts"), [(1, 1, 4), (2, 1, 1), (4, 4, 4), (3, 2, 4)])
def test_one_core_one_part_or_threads_of_torch_take_the_callers_thread(
    cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, count: int, threads: int, parts: int
) -> None:
    cores(count)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = list(in_parallel(lambda part: threading.current_thread(), range(parts)))
    assert found == [threading.current_thread()] * parts


def build_an_algorithm() -> None:
    PreferencePPOConfig.from_experiment(Experiment(environment="Pendulum-v1")).build_algo().stop()


def build_a_reward_trainer() -> None:
    space = gym.spaces.Box(-1.0, 1.0, (2,))
    RewardTrainer(RewardModelSettings(), space, space, held_out_share=0.1, seed=0)


@pytest.mark.parametrize("build", [build_an_algorithm, build_a_reward_trainer])
@pytest.mark.parametrize(("told", "threads"), [(None, 1), ("", 1), ("3", 3)])
def test_torch_has_one_thread_unless_told(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[], None], told: str | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # as on a machine of three cores
    try:
        build()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_threads_have_the_callers_mode_of_gradients(cores: Callable[[int], None]) -> None:
    cores(2)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert list(in_parallel(lambda part: torch.is_grad_enabled(), range(3))) == [enabled] * 3
    assert torch.is_grad_enabled()


def test_an_error_of_a_part_is_the_callers(cores: Callable[[int], None]) -> None:
    cores(2)
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(lambda part: 1 // part, [1, 0, 1]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_gradient_of_a_weighted_sum_is_added(cores: Callable[[int], None], count: int) -> None:
    cores(count)
    factor, frozen, unused = (nn.Parameter(torch.tensor(value)) for value in (3.0, 5.0, 7.0))
    frozen.requires_grad_(False)
    factor.grad = torch.tensor(100.0)

    def losses(part: Tensor) -> tuple[Tensor, Tensor]:
        return factor**2 * frozen * part, torch.full_like(part, 0.5)

    add_gradients([factor, frozen, unused], losses, [torch.tensor([1.0, 2.0]), torch.tensor([4.0])])
    assert float(factor.grad) == 100.0 + 2 * 3.0 * 5.0 * 0.5 * (1 + 2 + 4)  # d/df Σ w f² g x = Σ w 2 f g x
    assert frozen.grad is None
    assert unused.grad is None


def test_parameters_with_one_gradient_get_it_each() -> None:
    one, other = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    add_gradients([one, other], lambda part: ((one + other).sum() * part, torch.tensor(1.0)), [2.0, 3.0])
    assert one.grad is not None
    assert other.grad is not None
    assert one.grad.tolist() == other.grad.tolist() == [5.0, 5.0]


def test_no_bit_of_a_gradient_depends_on_the_cores(cores: Callable[[int], None]) -> None:
    torch.manual_seed(0)
    network, images = (
        nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 3)),
        torch.rand(35, 3, 16, 16),
    )
    seen = []
    for count in (1, 2, 5):
        cores(count)
        network.zero_grad()
        add_gradients(
            network.parameters(), lambda part: (network(part).square().mean(), torch.tensor(0.2)), images.split(5)
        )
        seen.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))  # type: ignore[union-attr]
    assert seen[0].abs().max() > 0
    assert all(torch.equal(seen[0], other) for other in seen[1:])
    network.zero_grad()
    (0.2 * sum(network(part).square().mean() for part in images.split(5))).backward()
    torch.testing.assert_close(
        seen[0],
        torch.cat([parameter.grad.flatten() for parameter in network.parameters()]),  # type: ignore[union-attr]
    )


@pytest.mark.parametrize(("name", "fused"), [("Adam", False), ("AdamW", True)])
def test_they_step_bit_for_bit_as_torchs_own(name: str, fused: bool) -> None:
    weights = []
    for kind in (getattr(torch.optim, name), getattr(optim, name)):
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 2)
        optimizer = kind(network.parameters(), lr=0.1, fused=fused)
        for step in range(4):
            if step == 2:
                kept = optimizer.state_dict()
                optimizer = kind(network.parameters(), lr=0.1, fused=fused)
                optimizer.load_state_dict(kept)
            optimizer.zero_grad(set_to_none=True)
            (network(torch.ones(5, 3)) ** 2).mean().backward()
            optimizer.step()
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


@pytest.mark.parametrize("has", [True, False])
def test_auto_goes_by_what_the_cpu_has(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(optim, "computes_in_bfloat16", lambda: has)
    assert optim.in_bfloat16("auto", device) is has
    assert not optim.in_bfloat16("auto", torch.device("cuda"))
    assert optim.in_bfloat16("bfloat16", device)
    assert not optim.in_bfloat16("float32", device)


@pytest.mark.parametrize("shape", [(7, 5, 3), (7, 1, 3), (7, 5, 1), (1, 5, 3), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("stack", [(), (2,)], ids=["one", "stack"])
def test_products_are_those_in_float64_whatever_is_transposed(
    shape: tuple[int, int, int], stack: tuple[int, ...]
) -> None:
    n, k, m = shape
    left, right = torch.randn(*stack, n, k), torch.randn(*stack, k, m)
    expected = (left.double() @ right.double()).float()
    for turned_left in (left, left.mT.contiguous().mT):
        for turned_right in (right, right.mT.contiguous().mT):
            for out in (torch.full((*stack, n, m), 7.0), torch.full((*stack, m, n), 7.0).mT):
                assert multiply(turned_left, turned_right, out) is out
                torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
