"""Counterfactuals: a continuation without changes repeats the original, an edit changes what it should, and effects are paired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.controls import Controlled, controlled
from rlhf_ray.interpret.agent.counterfactual import Counterfact, counterfact, go_on, repeats, snapshots_of
from rlhf_ray.interpret.agent.edits import changed_by, unheard
from rlhf_ray.interpret.agent.effects import CausalEffect, Change, effect
from rlhf_ray.interpret.agent.steps import counterfactuals
from rlhf_ray.interpret.agent.steps.counterfactuals import EditEffect, Stage
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases, removed_variance
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
from tests.agents.test_play import LEVELS, agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.directions import linear, oblique


@pytest.fixture(scope="module")
def agent() -> NetworkAgent:
    return agent_of("gru", False)


@pytest.fixture(scope="module")
def stays(agent: NetworkAgent) -> Directions:
    """The direction from walking to staying."""
    weights = agent.network.actor.weight.double().detach().numpy()
    return linear((weights[0] - weights[1])[None], np.zeros(8))


@pytest.fixture(scope="module")
def played(agent: NetworkAgent) -> Episodes:
    return play(agent, Corridors(6), LEVELS, keep_states=True, greedy=False, seed=5)


def some(episodes: Episodes) -> tuple[np.ndarray, np.ndarray]:
    rows = np.repeat(np.flatnonzero(episodes.lengths >= 2), 2)
    return rows, np.arange(len(rows)) % 2


def halves(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """A mapper that works on copies, in another order, as other machines would."""
    listed = list(items)
    done = {at: function(listed[at]) for at in reversed(range(len(listed)))}
    return iter([done[at] for at in range(len(listed))])


def test_a_continuation_without_changes_repeats_the_original_exactly(played: Episodes, agent: NetworkAgent) -> None:
    snapshots = snapshots_of(played, *some(played))
    again, changed = go_on(agent, Corridors, snapshots, greedy=False, seed=5, mapper=halves)
    assert not changed.any()
    for at, (row, step) in enumerate(zip(snapshots.rows, snapshots.steps, strict=True)):
        rest = played.lengths[row] - step
        assert again.lengths[at] == rest
        assert again.causes[at] == played.causes[row]
        for name in ("actions", "rewards", "observations"):
            np.testing.assert_array_equal(getattr(again, name)[at, :rest], getattr(played, name)[row, step:][:rest])
    assert repeats(Corridors(5), played, snapshots).all()


def test_a_state_that_does_not_repeat_is_noticed(played: Episodes) -> None:
    class Forgets(Corridors):
        def restore(self, states: Any) -> Any:
            super().restore(states)
            for copy in self._copies:
                copy["trap"] = False
            return self._observations()

    snapshots = snapshots_of(played, *some(played))
    trapped = np.array([played.states["trap"][row, 0] for row in snapshots.rows])
    fell = np.array([played.causes[row] == "trap" for row in snapshots.rows])
    again = repeats(Forgets(4), played, snapshots)
    assert fell.any()
    assert not again[trapped & (snapshots.steps == 0)].any()  # the trap is seen at the first step
    assert again[~trapped].all()


def test_an_edit_changes_only_levels_that_have_what_it_removes(played: Episodes, agent: NetworkAgent) -> None:
    rows, steps = some(played)
    snapshots = snapshots_of(played, rows, steps)
    found = counterfact(agent, Corridors, snapshots, edit="remove_trap")
    assert found is not None
    assert found.snapshots.rows.tolist() == rows[played.states["trap"][rows, 0]].tolist()
    assert "trap" in found.plain.causes
    assert "trap" not in found.changed.causes
    free = snapshots[~played.states["trap"][rows, 0]]
    assert counterfact(agent, Corridors, free, edit="remove_trap") is None
    basis = oblique(8, 2)
    steered = counterfact(
        agent, Corridors, snapshots, interventions=[Intervention(basis, [0], "steer", amount=2.0)], mapper=halves
    )
    assert steered is not None
    assert len(steered.snapshots) == len(snapshots)
    assert (steered.changed.logits[:, 0] != steered.plain.logits[:, 0]).any()


def test_bad_requests_are_named(played: Episodes, agent: NetworkAgent) -> None:
    snapshots = snapshots_of(played, *some(played))
    with pytest.raises(SettingError, match="Corridor offers remove_trap, shorten"):
        go_on(agent, Corridors, snapshots, edit="remove_saw")
    with pytest.raises(SettingError, match="keep_states"):
        snapshots_of(play(agent, Corridors(1), [1]), [0], [0])
    with pytest.raises(SettingError, match="beyond the end"):
        snapshots_of(played, [0], [played.lengths[0]])
    with pytest.raises(SettingError, match="no snapshots"):
        go_on(agent, Corridors, snapshots[[]])


def test_effects_are_paired_by_level(agent: NetworkAgent, stays: Directions) -> None:
    levels = np.repeat(np.arange(40), 5)
    plain = play(agent, Corridors(16), levels, frames=False)
    fallen = sum(cause == "trap" for cause in plain.causes) / len(plain)
    same = effect(plain, plain, agent.action_space, ["stay", "walk", "leap"])
    assert same.returns.difference.mean == same.returns.difference.low == same.returns.difference.high == 0.0
    assert same.outcomes["trap"].before == pytest.approx(fallen)
    assert sum(change.before for change in same.actions.values()) == pytest.approx(1.0)
    # Episodes of one level are the same, so there are 40 measurements, not 200.
    once = play(agent, Corridors(16), range(40), frames=False)
    steer = [Intervention(stays, [0], "steer", amount=2.0)]
    by_level = effect(plain, play(agent, Corridors(16), levels, hooks=steer), agent.action_space)
    alone = effect(once, play(agent, Corridors(16), range(40), hooks=steer), agent.action_space)
    assert by_level.returns.difference == alone.returns.difference
    assert alone.outcomes["timeout"].difference.mean > 0.2
    assert not alone.returns.difference.holds_zero
    assert alone.actions["0"].difference.mean == pytest.approx(alone.actions["0"].after - alone.actions["0"].before)


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        found = estimate_mean(rng.normal(1.0, 2.0, 6))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.0 <= found.high
    assert 180 <= hits <= 198
    alone = estimate_mean(np.array([3.0]))
    assert (alone.mean, alone.low, alone.holds_zero) == (3.0, None, True)


def test_random_directions_take_as_much_variance_and_leave_the_components_scores() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((500, 8)) * np.linspace(0.2, 3.0, 8)
    values[:, 7] = values[:, 6]  # one axis of the space never varies
    for basis, components in ((oblique(8, 3), [1]), (linear(np.eye(8), np.zeros(8)), [2, 0])):
        drawn = random_bases(basis, components, values, count=4, seed=1)
        assert len(drawn) == 4
        own = ((values - basis.remove(values, components)) ** 2).sum(1).mean()
        taken = removed_variance(basis, components, values)
        assert taken == pytest.approx(((values - basis.remove(values, components)).var(0).sum()) / values.var(0).sum())
        assert own > 0.0
        for each in drawn:
            every = range(len(each))
            assert removed_variance(each, every, values) == pytest.approx(taken, rel=0.02)
            without = each.remove(values, every)
            np.testing.assert_allclose(
                basis.encode(without)[:, components], basis.encode(values)[:, components], atol=1e-8
            )
            np.testing.assert_allclose(each.filters @ each.patterns.T, np.eye(len(each)), atol=1e-9)
            np.testing.assert_allclose(each.patterns[:, 6], each.patterns[:, 7], atol=1e-9)  # within the space
            lengths = np.linalg.norm(each.patterns, axis=1)
            np.testing.assert_allclose(lengths, np.linalg.norm(basis.patterns[components[0]]))
    still = random_bases(basis, [0], np.zeros((5, 8)), count=2)
    assert still == []


def test_where_no_other_direction_carries_as_much_several_do_together() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 6)) * np.sqrt([5.0, 3.0, 3.0, 1.0, 1.0, 1.0])
    units = linear(np.eye(6), np.zeros(6))
    (one, *_) = random_bases(units, [0], values, count=3)
    assert len(one) == 2
    assert removed_variance(one, range(2), values) == pytest.approx(5.0 / 14.0, rel=0.05)
    (every, half, _) = random_bases(units, [0, 1, 2], values, count=3)  # 11 of 14
    assert (len(every), len(half)) == (3, 2)
    assert removed_variance(every, range(3), values) == pytest.approx(3.0 / 14.0, rel=0.1)


@pytest.mark.parametrize(("size", "count"), [(1, 0), (2, 1), (3, 10)])
def test_a_small_memory_has_fewer_random_directions(size: int, count: int) -> None:
    values = np.random.default_rng(0).standard_normal((50, size))
    assert len(random_bases(oblique(size, 1), [0], values)) == count


def test_an_effect_stands_beside_random_directions(agent: NetworkAgent, stays: Directions) -> None:
    values = play(agent, Corridors(16), range(30)).memory[:, 1:].reshape(-1, 8)

    def steer(given: Any, components: Any) -> Intervention:
        return Intervention(given, components, "steer", amount=2.0)

    found = controlled(agent, Corridors, range(30), steer, stays, [0], values, count=3, mapper=halves)
    assert len(found.random) == 3
    assert found.effect.returns.before == found.random[0].returns.before
    assert len({of.returns.after for of in (found.effect, *found.random)}) > 1
    assert found.to_json()["outcomes"]["end"]["difference"]["mean"] == found.effect.outcomes["end"].difference.mean


def test_what_changes_nothing_and_what_chance_may_change_are_no_effects(agent: NetworkAgent, stays: Directions) -> None:
    values = play(agent, Corridors(16), range(30)).memory[:, 1:].reshape(-1, 8)
    nothing = controlled(
        agent, Corridors, range(30), lambda b, c: Intervention(b, c, "scale", amount=1.0), stays, [0], values, count=3
    )
    assert not nothing.changes
    assert nothing.effect.acts.mean == 0.0
    # Random directions change nothing at all, and one level of thirty comes out otherwise.
    one = np.arange(30) == 7
    lucky = replace(nothing.effect, returns=Change.of(0.0 * one, 1.0 * one, np.arange(30)))
    assert lucky.returns.difference.mean > 0
    assert not Controlled(lucky, nothing.random).changes


def test_what_the_world_pays_without_another_action_is_no_reaction() -> None:
    """A pit is closed, and the agent that never looked at it goes on as it would have; one that acts otherwise reacts."""
    levels, gains = np.arange(12), np.linspace(3.0, 5.0, 12)
    returns = Change.of(np.ones(12), 1.0 + gains, levels)
    same, other = estimate_mean(np.zeros(12), levels), estimate_mean(np.full(12, 0.25), levels)
    assert Stage(1, 9, 12, same, same, same, returns).size == 0.0
    assert Stage(1, 9, 12, same, other, other, returns).size == 0.25  # by what it does, not by what the world pays
    assert Stage(1, 9, 12, other, same, same, Change.of(np.ones(12), np.ones(12), levels)).size == 0.25


def edited_effect(first: FloatArray, later: FloatArray, returns: FloatArray) -> EditEffect:
    """Return the effect of an edit at 60 moments, one of each level: what differs at once, in later steps, and in the return."""
    levels, ones = np.arange(60), np.ones(60)
    ever = estimate_mean(np.maximum(first, later > 0) * 1.0, levels)
    action, acts, change = (
        estimate_mean(first, levels),
        estimate_mean(later, levels),
        Change.of(ones, ones + returns, levels),
    )
    still = estimate_mean(np.zeros(60), levels)
    whole = CausalEffect(60, 60, change, {"end": change}, {}, change, acts)
    stage = Stage(0, 0, 60, action, acts, ever, change)
    return EditEffect("turns it", action, still, still, 1.0, ever, whole, [stage], box=False)


@pytest.mark.parametrize(
    ("share", "when", "key", "line"),
    [(0.0, "later", "reacts_later", "REACTS LATER TO"), (0.05, "open", "reacts_later", "REACTS TO"),
     (0.5, "at once", "reacts", "REACTS TO")],
)  # fmt: skip
def test_an_agent_reacts_later_only_where_it_does_not_at_once(share: float, when: str, key: str, line: str) -> None:
    first = (np.arange(60) < 60 * share) * 1.0
    one = edited_effect(first, np.where(np.arange(60) % 2, 0.5, 0.3), np.zeros(60))
    assert one.when == when
    (said,) = counterfactuals._statements("turn", one)
    assert said.key == f"counterfactuals.{key}"
    assert said.line.startswith(line)
    assert ("later" in said.figure) == (when == "later")


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_reaction_at_some_steps_is_as_strong_as_what_the_agent_does(first: float) -> None:
    """The world pays nothing more without what is edited, whatever the agent does: the share of other actions counts."""
    one = edited_effect(np.full(60, first), np.full(60, 0.3), np.full(60, -1.0))
    seldom = replace(
        one, action=estimate_mean(np.arange(60) < 3), effect=replace(one.effect, acts=estimate_mean(np.full(60, 0.02)))
    )
    (said,) = counterfactuals._statements("no_gates", seldom)
    assert said.key == "counterfactuals.reacts_at"
    assert said.weight == pytest.approx(max(first, 0.3))
    assert "return" not in said.figure
    assert ("later" in said.figure) == (first == 0.0)
    rare = replace(one.stages[0], action=estimate_mean(np.arange(60) < 6), ever=estimate_mean(np.arange(60) < 6))
    weak = replace(seldom, stages=[replace(rare, acts=estimate_mean(np.full(60, 0.2)))])
    (said,) = counterfactuals._statements("no_gates", weak)
    assert said.strength == "weak"  # though the world pays nothing more


def test_an_edit_is_about_what_it_is_named_after_or_all_that_it_changes() -> None:
    made = play(agent_of("none", False), Corridors(4), range(8), max_steps=2)

    def edited(edit: str, **changes: float) -> list[str]:
        names = {"metal": 0.0, "hot_metal": 0.0, "room": 0.0}
        sides = [
            replace(made, states={name: np.full((8, 3), value) for name, value in one.items()})
            for one in (names, names | changes)
        ]
        return changed_by(edit, *sides)

    assert edited("flip_metal", metal=1.0) == ["metal"]
    assert edited("flip_metal", metal=1.0, hot_metal=1.0) == ["metal"]
    assert edited("turn", metal=1.0, room=2.0) == ["metal", "room"]
    assert edited("flip_room") == ["room"]
    assert edited("flip_door", metal=float("nan")) == ["metal"]
    assert edited("flip_door") == []


def test_a_value_that_an_edit_moves_at_one_stage_is_told() -> None:
    """Over all moments, its interval holds nothing; at the start it moves by two of its standard deviations."""
    same, levels = MeanEstimate(0.0, 0.0, 0.0), np.arange(12)
    returns = Change.of(np.ones(12), np.ones(12), levels)
    stages = [Stage(0, 0, 12, same, same, same, returns, MeanEstimate(2.0, 1.8, 2.2))]
    stages.append(Stage(1, 9, 50, same, same, same, returns, same))
    whole = CausalEffect(60, 12, returns, {}, {}, returns, same)
    one = EditEffect("turns it", same, same, MeanEstimate(0.2, 0.01, 0.4), 1.0, same, whole, stages, box=False)
    assert one.valued is stages[0]
    assert [said.key for said in counterfactuals._statements("turn", one)] == ["counterfactuals.value_reacts"]
    assert "where it is made at step 0" in next(counterfactuals._statements("turn", one)).text
    assert not list(counterfactuals._statements("turn", replace(one, stages=stages[1:])))


def test_what_an_edit_at_the_start_flips_without_a_reaction_is_unheard() -> None:
    made = play(agent_of("none", False), Corridors(4), range(8), max_steps=2)
    states = {
        "metal": np.tile([0.0, 1.0], 4)[:, None] * np.ones((8, 3)),
        "room": np.tile([0.0, 0.0, 1.0, 1.0], 2)[:, None] * np.ones((8, 3)),
    }
    plain = replace(made, states=states)
    snapshots = snapshots_of(replace(plain, env_states=[[b""] * 3] * 8), np.arange(8), np.zeros(8, np.int64))

    def flipped(*names: str, acts: bool = False) -> Counterfact:
        changed = replace(plain, states=states | {name: 1.0 - states[name] for name in names})
        actions = (plain.actions + 1) % 3 if acts else plain.actions
        return Counterfact(snapshots, plain, replace(changed, actions=actions))

    def silent(*pairs: tuple[str, bool, Counterfact]) -> set[str]:
        return unheard(pairs, gym.spaces.Discrete(3), lambda levels: np.asarray(levels))

    assert silent(("flip_metal", True, flipped("metal"))) == {"metal"}
    assert silent(("flip_metal", False, flipped("metal"))) == set()
    assert silent(("flip_metal", True, flipped("metal", acts=True))) == set()
    assert silent(("turn", True, flipped("metal", "room")), ("flip_room", True, flipped("room", acts=True))) == {
        "metal"
    }
