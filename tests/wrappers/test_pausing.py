"""Pausing collecting alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_ray.wrappers.session import WINDOW
from tests.made_up import Walk
from tests.wrappers.walking import act, make

UP = np.array([0.5], np.float32)


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
