"""The intrinsic reward of unsupervised pretraining, against a second computation."""

import numpy as np
import pytest
import torch

from rlhf_ray.reward.novelty import NEIGHBOURS, RECENT, Novelty


def _by_hand(before: np.ndarray, states: np.ndarray) -> np.ndarray:
    """log(1 + distance to the 5th-nearest other state), one state after the other."""
    rewards = []
    for i, state in enumerate(states):
        others = np.concatenate([before, np.delete(states, i, axis=0)])
        rewards.append(np.log1p(np.sort(np.linalg.norm(others - state, axis=1))[NEIGHBOURS - 1]))
    return np.array(rewards)


def test_the_reward_is_the_distance_to_the_fifth_neighbour_normalised_over_all_so_far() -> None:
    rng = np.random.default_rng(0)
    novelty, before, every = Novelty(3), np.zeros((0, 3)), np.zeros(0)
    for scale in (1.0, 5.0, 0.2):
        states = (scale * rng.normal(size=(700, 3))).astype(np.float32)
        rewards = novelty(torch.as_tensor(states)).numpy()
        raw = _by_hand(before, states)
        before, every = np.concatenate([before, states])[-RECENT:], np.append(every, raw)
        assert rewards == pytest.approx((raw - every.mean()) / every.std(), abs=2e-3)


@pytest.mark.slow
def test_only_recent_states_count_and_a_loaded_module_continues_exactly() -> None:
    rng = np.random.default_rng(0)
    far, near = (torch.as_tensor(at + rng.normal(size=(RECENT, 2)), dtype=torch.float32) for at in (100.0, 0.0))
    novelty = Novelty(2)
    novelty(far)
    first = novelty(near)[:10]
    novelty(near)  # forgets the far ones
    copy = Novelty(2)
    copy.load_state_dict(novelty.state_dict())
    again = novelty(far[:10])
    assert torch.equal(again, copy(far[:10]))
    assert again.min() > first.max()


def test_a_state_visited_often_is_worth_less_than_a_new_one() -> None:
    novelty = Novelty(1)
    novelty(torch.zeros(100, 1))
    often, new = novelty(torch.tensor([[0.0], [3.0]]))
    assert often < new


def test_few_states_are_no_error() -> None:
    assert torch.isfinite(Novelty(2)(torch.zeros(1, 2))).all()
    assert Novelty(2)(torch.zeros(0, 2)).shape == (0,)


def test_replayed_states_are_judged_but_not_remembered() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(300, 2)).astype(np.float32)
    novelty = Novelty(2)
    first = novelty(torch.as_tensor(states))
    before = {name: value.clone() for name, value in novelty.state_dict().items()}
    drawn = rng.integers(300, size=500)  # with repeats, as from a replay buffer
    again = novelty(torch.as_tensor(states[drawn]), remember=False)
    assert torch.allclose(again, first[torch.as_tensor(drawn)], atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in novelty.state_dict().items())
