"""Rollouts of env runners: which fragments are cut out of them, what is sent to the pool, and how old their policy may be."""

import contextlib
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.data.errors import LostFragmentsError
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.rllib import algorithm, rollouts
from rlhf_ray.rllib.rollouts import FragmentCutter, RolloutsAhead
from rlhf_ray.settings import ResolvedFragments

VECTORS, IMAGES = gym.spaces.Box(-10, 10, (2,), np.float32), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)


def episode(steps: int, version: int, *, before: int = 0, ended: str = "") -> SingleAgentEpisode:
    """A piece of an episode, ``before`` steps after its start, two of which it looks back at. Observations count the steps."""
    back = min(2, before)
    made = SingleAgentEpisode(
        observations=[np.array([version, before + t], np.float32) for t in range(-back, steps + 1)],
        actions=[t % 2 for t in range(-back, steps)],
        rewards=[float(before + t) for t in range(-back, steps)],
        terminated=ended == "terminated",
        truncated=ended == "truncated",
        observation_space=VECTORS,
        action_space=gym.spaces.Discrete(2),
        t_started=before,
        len_lookback_buffer=back,
        extra_model_outputs={"weights_seq_no": [version] * (back + steps)},
    )
    return made.to_numpy() if steps else made


def runner(
    mode: str = "asynchronous",
    *,
    space: gym.Space[Any] = VECTORS,
    runners: int = 3,
    films: bool = False,
    **changes: Any,
) -> Any:
    fragments = ResolvedFragments(**{"length": 5, "pool": 40, "initial_env_steps": 100, **changes})
    config = SimpleNamespace(
        checked=SimpleNamespace(
            experiment=SimpleNamespace(seed=1, preferences=SimpleNamespace(mode=mode, comparisons=10)),
            fragments=fragments,
            horizon=200,
            films=films,
        ),
        num_env_runners=runners,
        get_rollout_fragment_length=lambda: 60,
        in_evaluation=False,
        ring_name="ring",
    )
    env = SimpleNamespace(single_action_space=gym.spaces.Discrete(2), single_observation_space=space)
    return SimpleNamespace(config=config, env=env, worker_index=2)


class Ring:
    """An executor whose pool is busy, or fails, as asked."""

    def __init__(self) -> None:
        self.added: list[CutFragments] = []
        self.busy = self.fails = False
        self.waited = 0

    def find(self, kind: type, role: str) -> Any:
        return lambda: self

    def call(self, method: Any, cut: CutFragments) -> object:
        if self.fails:
            raise OSError("no pool")
        self.added.append(cut)
        return object()

    def get(self, reference: object) -> None:
        self.waited += 1

    def ready(self, reference: object) -> bool:
        return not self.busy

    def apart(self) -> Any:
        return contextlib.nullcontext()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    made = Ring()
    monkeypatch.setattr("rlhf_ray.rllib.rollouts.executor_of", lambda name: made)
    return made


def sampled(cutter: FragmentCutter, of: Any, *episodes: SingleAgentEpisode) -> dict[str, float] | None:
    logged: list[dict[str, float]] = []
    metrics = SimpleNamespace(log_dict=lambda values, reduce: logged.append(values))
    cutter.on_sample_end(env_runner=of, metrics_logger=metrics, samples=list(episodes))
    return logged[0] if logged else None


def test_fragments_hold_what_happened_under_the_newest_version(ring: Ring) -> None:
    pieces = [
        episode(20, 7, ended="truncated"), episode(9, 8, before=50, ended="terminated"), episode(5, 8, before=90),
        episode(4, 8), episode(0, 9),
    ]  # fmt: skip
    sampled(FragmentCutter(), runner(pool=300), *pieces)
    cut = ring.added[0]
    fragments = cut.fragments
    assert (cut.source, cut.policy_version) == (2, 8)
    assert cut.episode_lengths == (20, 59)
    assert len(fragments) == 16 + 5 + 1  # every window
    assert set(fragments.policy_versions) == {8}
    found = {(int(one[0, 0]), int(start)) for one, start in zip(fragments.observations, fragments.starts, strict=True)}
    assert found == {(7, t) for t in range(16)} | {(8, t) for t in (*range(50, 55), 90)}
    for observations, rewards, start in zip(fragments.observations, fragments.rewards, fragments.starts, strict=True):
        np.testing.assert_array_equal(observations[:, 1], start + np.arange(6))
        np.testing.assert_array_equal(rewards, start + np.arange(5))
    sampled(FragmentCutter(), runner(), episode(0, 9))  # in which no policy has acted
    assert (ring.added[1].policy_version, ring.added[1].fragments) == (0, None)
    assert fragments.terminated.tolist() == [start == 54 for start in fragments.starts]
    sampled(FragmentCutter(), runner(), episode(0, 9), episode(1, 8), episode(4, 8, ended="truncated"))
    assert ring.added[2].episode_lengths == (4,)  # what a rollout cuts off an episode is not an episode


@pytest.mark.parametrize(
    ("runners", "of", "count"),
    [
        (3, {"pool": 40}, 14),  # a third of the pool
        (0, {"pool": 40}, 40),
        (3, {"pool": 40, "varied": True}, 5),  # 14 in 200 steps of an episode are 4.2 in 60
        (1, {"pool": 10, "varied": True}, 3),
    ],
)
def test_each_env_runner_fills_its_share_of_the_pool(ring: Ring, runners: int, of: dict[str, Any], count: int) -> None:
    sampled(FragmentCutter(), runner(runners=runners, **of), episode(60, 1))
    assert ring.added[0].fragments is not None
    assert len(ring.added[0].fragments) == count


def test_no_rollout_waits_for_a_busy_pool_and_errors_are_counted(ring: Ring) -> None:
    cutter, of = FragmentCutter(), runner()
    assert sampled(cutter, of, episode(20, 1)) == {"fragments_failed": 0, "fragments_dropped": 0}
    ring.busy = True
    assert sampled(cutter, of, episode(20, 2)) == {"fragments_failed": 0, "fragments_dropped": 1}
    ring.busy, ring.fails = False, True
    assert sampled(cutter, of, episode(20, 3)) == {"fragments_failed": 1, "fragments_dropped": 0}
    assert ([cut.policy_version for cut in ring.added], ring.waited) == ([1], 0)


def test_the_synchronous_mode_waits_and_loses_nothing(ring: Ring) -> None:
    cutter, of = FragmentCutter(), runner("synchronous")
    ring.busy = True
    for version in (1, 2):
        sampled(cutter, of, episode(20, version))
    assert ([cut.policy_version for cut in ring.added], ring.waited) == ([1, 2], 2)
    ring.fails = True
    with pytest.raises(LostFragmentsError, match="no pool"):
        sampled(cutter, of, episode(20, 3))


def test_evaluation_runs_without_questions_and_films_send_nothing(ring: Ring) -> None:
    evaluation, fixed = runner(), runner()
    evaluation.config.in_evaluation = True
    fixed.config.checked.experiment.preferences.comparisons = 0
    for of in (evaluation, fixed, runner(films=True)):
        assert sampled(FragmentCutter(), of, episode(20, 1)) is None
    assert not ring.added
    sampled(FragmentCutter(), runner(films=True, space=IMAGES), episode(20, 1))  # images are shown as they are
    assert len(ring.added) == 1


class Runners:
    """Env runners that finish rollouts after a number of waits of their own; a rollout is the iteration that began it."""

    def __init__(self, waits: list[int]):
        self.waits, self.left, self.begun = waits, dict[int, int](), dict[int, int]()
        self.now: Callable[[], int] = lambda: 0
        self.waited = 0

    def healthy_env_runner_ids(self) -> list[int]:
        return list(range(len(self.waits)))

    def foreach_env_runner_async(self, sample: Any, tag: str, remote_worker_ids: list[int]) -> None:
        for runner in remote_worker_ids:
            assert runner not in self.left
            self.left[runner], self.begun[runner] = self.waits[runner], self.now()

    def fetch_ready_async_reqs(self, tags: str) -> list[Any]:
        done = [runner for runner, left in self.left.items() if left <= 0]
        for runner in done:
            del self.left[runner]
        return [(runner, (self.begun[runner], None)) for runner in done]

    def wait(self, calls: list[int], **_: Any) -> None:
        while all(self.left[runner] > 0 for runner in calls):
            self.left = {runner: left - 1 for runner, left in self.left.items()}
            self.waited += 1


@pytest.mark.parametrize("max_age", [None, 0, 1, 3])
def test_no_rollout_is_older_than_the_bound(monkeypatch: pytest.MonkeyPatch, max_age: int | None) -> None:
    runners = Runners([1, 1, 2, 17])  # the last is slow
    config = types.SimpleNamespace(num_env_runners=4, sample_timeout_s=1e9)
    ahead = RolloutsAhead(types.SimpleNamespace(env_runner_group=runners, config=config), max_age)  # type: ignore[arg-type]
    monkeypatch.setattr(rollouts, "env_runner_calls", lambda group, tag: {runner: runner for runner in group.left})
    monkeypatch.setattr(rollouts.ray, "wait", runners.wait)
    runners.now = lambda: ahead.takes
    ages = [ahead.takes - begun for _ in range(60) for begun, _ in ahead.take(1000)]
    assert len(ages) == 60 * 4  # an iteration takes as many as ever
    assert set(runners.begun) == {0, 1, 2, 3}
    if max_age is None:
        assert max(ages) > 3
        assert runners.waited < 60 * 3  # not for the slow one
    else:
        assert max(ages) == max_age


@pytest.mark.parametrize(
    ("learners", "taken", "minibatches"),
    # Of 4 env runners with 100 steps each: 3 passes over the steps of each learner, in minibatches of 50.
    [(2, 4, 3 * 200 // 50), (2, 3, 3 * 150 // 50), (3, 3, 3 * 100 // 50)],
)
def test_each_of_several_learners_takes_as_many_minibatches(learners: int, taken: int, minibatches: int) -> None:
    config = types.SimpleNamespace(
        num_learners=learners, num_env_runners=4, total_train_batch_size=400, num_epochs=3, minibatch_size=50
    )
    of: Any = types.SimpleNamespace(config=config)
    references = [object()] * taken
    assert rollouts._data(of, references) == {"episodes_refs": references, "num_total_minibatches": minibatches}
    config.num_learners = 1
    assert rollouts._data(of, references) == {"episodes_refs": references}
    config.minibatch_size, config.num_learners = 10_000, learners
    assert rollouts._data(of, references) == {"episodes_refs": references, "num_total_minibatches": 1}


def test_fewer_rollouts_than_learners_and_lost_ones_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reference: Any) -> list[Any]:
        if reference == "lost":
            raise rollouts.ray.exceptions.ObjectLostError("", "", "")
        return [reference, reference]

    monkeypatch.setattr(rollouts.ray, "get", get)
    for learners, references, episodes in ((0, ["a", "lost", "b"], ["a", "a", "b", "b"]), (2, ["a"], ["a", "a"])):
        of: Any = types.SimpleNamespace(config=types.SimpleNamespace(num_learners=learners))
        assert rollouts._data(of, references) == {"episodes": episodes}
    assert rollouts._data(of, ["lost"]) is None


@pytest.mark.parametrize(("steps", "most"), [(0, 14), (10_000, 4), (10_001, 2), (12_000, 2), (14_000, 2)])
def test_no_more_rollouts_are_begun_than_the_budget_has_room_for(monkeypatch, steps, most):
    """Of two env runners; of 14,000 steps, an iteration takes up to 2,000. One iteration is run in any case."""
    asked: list[int] = []
    monkeypatch.setattr(algorithm, "learn_while_sampling", lambda run, ahead, most, ready, **of: asked.append(most))
    experiment = types.SimpleNamespace(preferences=types.SimpleNamespace(mode="asynchronous"), total_env_steps=14_000)
    run: Any = types.SimpleNamespace(
        _checked=types.SimpleNamespace(experiment=experiment),
        training_iteration=3,
        config=types.SimpleNamespace(num_env_runners=2, most_iteration_env_steps=2_000),
        env_steps=steps,
        _ahead=None,
        update_arguments=dict,
    )
    algorithm.LearnsFromPreferences._iterate_once(run, lambda: None)
    assert asked == [most]
