"""`explore`, and pausing collecting alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlhf_ray.settings import FragmentSettings, SettingError
from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Walk
from tests.wrappers import test_vector
from tests.wrappers.walking import act, make

UP = np.array([0.5], np.float32)


def _switching(share: float, switch: float) -> FragmentSettings:
    return FragmentSettings(
        length=5, initial_env_steps=400, pool=20_000, random_action_share=share, switch_probability=switch
    )


def _changes(random: Any) -> float:
    """How often a random action follows one of the policy or the other way round."""
    return float((random[1:] != random[:-1]).mean())


@pytest.mark.slow
@pytest.mark.parametrize("switch", [1.0, 0.2])
def test_actions_are_the_policys_and_random_ones_in_stretches(in_process: SimpleNamespace, switch: float) -> None:
    seen: list[Any] = []

    class Noting(Walk):
        def step(self, action: Any) -> Any:
            seen.append(np.array(action))
            return super().step(action)

    def policy(observation: Any) -> Any:
        observed.append(observation)
        return UP

    observed: list[Any] = []
    with make(Noting((2_000,), numbered=False), fragments=_switching(0.4, switch), total_env_steps=20_000) as env:
        act(env, 10)
        seen.clear()
        env.explore(policy, 2_000)
        assert env.status()["env_steps"] == 2_010
        assert len(env.true_returns) == 0
        assert env.status()["unlearned_steps"] == 10
        clips = [clips.fragments for clips in in_process.rings[0].clips]
    assert [observation[0] for observation in observed] == list(range(2_000))
    random = np.concatenate(seen) != 0.5
    assert random.mean() == pytest.approx(0.4, abs=0.1)
    # A change needs a draw, and the draw to differ from the one before.
    assert _changes(random) == pytest.approx(switch * 2 * 0.4 * 0.6, rel=0.25)
    compared = np.concatenate([fragments.actions.reshape(-1) for fragments in clips if fragments is not None])
    assert (compared != 0.5).mean() == pytest.approx(0.4, abs=0.1)
    assert len(compared) > 2_000  # each step is in two clips on average


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_each_copy_of_a_vector_environment_switches_by_itself(in_process: SimpleNamespace, mode: AutoresetMode) -> None:
    with test_vector.make(mode, fragments=_switching(0.4, 0.2), total_env_steps=20_000) as envs:
        policy_saw: list[Any] = []
        taken: list[Any] = []
        step = envs.env.step
        envs.env.step = lambda actions: (taken.append(np.array(actions)), step(actions))[1]  # type: ignore[method-assign]

        def policy(observations: Any) -> Any:
            policy_saw.append(observations.shape)
            return np.full((3, 1), 0.5, np.float32)

        envs.explore(policy, 1_500)
        assert 1_500 <= envs.status()["env_steps"] < 1_503
    assert set(policy_saw) == {(3, 3)}
    random = np.array(taken)[:, :, 0] != 0.5
    assert random.mean(axis=0) == pytest.approx([0.4] * 3, abs=0.1)
    together = np.corrcoef(random.T.astype(float))[np.triu_indices(3, 1)]
    assert (np.abs(together) < 0.2).all()


def test_one_explores_in_an_environment_of_its_own_that_shares_the_reward(in_process: SimpleNamespace) -> None:
    with make(wait=True) as env, env.share(Walk((20,), numbered=False)) as explorer:
        act(env, 10)
        explorer.explore(lambda observation: UP, 100)
        env.step(UP)  # its episode goes on
        assert env.status()["env_steps"] == 400 + 10 + 100 + 1
        assert in_process.rings[0].clips[-1].source == 1
        with pytest.raises(SettingError, match=r"env_steps is 4; a clip has fragments\.length=5 steps"):
            explorer.explore(lambda observation: UP, 4)
        explorer.pause()
        with pytest.raises(RuntimeError, match="asks nothing"):
            explorer.explore(lambda observation: UP, 100)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [False, "always"])
def test_collecting_can_be_paused_alone(in_process: SimpleNamespace, wait: Any) -> None:
    with make(wait=wait) as env:
        act(env, 2 * WINDOW)
        ring: Any = env._session.ring
        sent = []
        add = ring.source.take
        ring.source.take = lambda clips, *rest, **named: (sent.append(clips), add(clips, *rest, **named))[1]
        before = env.status()
        assert before["collecting"]
        assert before["comparisons"] >= 10
        env.pause_collecting()
        act(env, 3 * WINDOW)
        status = env.status()
        assert status["env_steps"] == before["env_steps"] + 3 * WINDOW
        assert (status["comparisons"], status["collecting"]) == (before["comparisons"], False)
        assert sent == []
        env.resume_collecting()
        act(env, WINDOW)
        assert env.status()["comparisons"] == env.status()["comparisons_due"] > before["comparisons"]
        (clips,) = sent
        steps = clips.fragments.observations[:, :, 0]
        assert (np.diff(steps, axis=1) == 1).all()
        act(env, WINDOW)
        env.pause_collecting()
        act(env, 3 * WINDOW)
        env.resume_collecting()
        act(env, WINDOW)  # the labels of the pause are made up for
        assert env.status()["comparisons"] == 30


def test_clips_do_not_join_the_steps_before_a_pause_and_after_it(in_process: SimpleNamespace) -> None:
    with make(Walk((20,))) as env:
        act(env, 13)
        env.pause_collecting()
        act(env, 13)
        env.resume_collecting()
        for _ in range(7 + WINDOW):  # from the 14th step of another episode on
            *_, truncated, _ = env.step(UP)
            if truncated:
                env.reset()
        clips = in_process.rings[0].clips[0].fragments
        episodes = clips.observations[:, :, 1]
        assert (episodes == episodes[:, :1]).all()
        assert episodes.min() == 1


def test_a_reward_is_not_waited_for_while_collecting_is_paused(in_process: SimpleNamespace) -> None:
    with make() as env:
        env.pause_collecting()
        act(env, 2 * WINDOW)
        assert env.status()["comparisons"] == 0
        with pytest.raises(RuntimeError, match="collecting is paused"):
            env.wait_for_reward()
        env.resume_collecting()
        act(env, 2 * WINDOW)
        assert env.status()["reward_version"] >= 1
