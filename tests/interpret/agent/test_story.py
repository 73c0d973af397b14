"""The causal story: agents whose memory is planted, so that each verdict is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.agent_calibrations.interventions import moved_as_far
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.interpret.agent import held
from rlhf_ray.interpret.agent.action_groups import Behaviour, behaviours_of
from rlhf_ray.interpret.agent.candidates import separate_directions
from rlhf_ray.interpret.agent.chains import ChainMoments, measure, sees, swapped
from rlhf_ray.interpret.agent.counterfactual import counterfact, snapshots_of
from rlhf_ray.interpret.agent.effects import CausalEffect, Change
from rlhf_ray.interpret.agent.erasure import Classes, Erasure
from rlhf_ray.interpret.agent.steps import story as step
from rlhf_ray.interpret.agent.story import CausalChain, EditedLevel, Joint, Link
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import orthogonal_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.lamps import A5, AGENTS, CLOCK, SIZE, Lamps
from tests.interpret.contexts import context_of

OBSERVATIONS = gym.spaces.Box(-10.0, 10.0, (6,), np.float32)
GO = Behaviour("go", (1,))
N = 400

Odds = Callable[[Tensor, Tensor], Tensor]


def planted(odds: Odds) -> FunctionAgent:
    """Remember what is seen, and go if the log-odds of memory ``[n, 6]`` and what is seen are above 0. The value is unit 1."""

    def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        up = odds(memory, seen)
        return torch.stack([torch.zeros_like(up), up], 1), memory[:, 1]

    return FunctionAgent(
        decide, OBSERVATIONS, gym.spaces.Discrete(2), remember=lambda seen, memory: seen, memory_size=6
    )


def chain(odds: Odds, largest_level: int = 1, name: str = "one") -> CausalChain:
    """Measure concept 0 (the sign of unit 0, beside noise; or by its ``name`` the other one) to "go".

    Unit 1 is another concept, at random; unit 2 a strong cause."""
    rng = np.random.default_rng(0)

    def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one, two = rng.integers(2, size=(2, N))
        seen = 0.2 * rng.standard_normal((N, 6))
        seen[:, 0] += 2.0 * one - 1.0
        seen[:, 1] += 2.0 * two - 1.0
        seen[:, 2] += 4.0 * rng.integers(2, size=N) - 2.0
        return seen.astype(np.float32), one.astype(float), two.astype(float)

    fitted, one, two = draw()
    basis = separate_directions(fitted, {"one": one, "two": two})[name]
    seen, holds, partner = draw()
    holds, partner = (holds, partner) if name == "one" else (partner, holds)
    levels = np.minimum(np.arange(N), N - largest_level)
    at = ChainMoments(np.arange(N), np.zeros(N, np.int64), seen, np.zeros((N, 6), np.float32), levels)
    found = measure(
        planted(odds), at, holds == 1, [GO], basis, fitted.astype(np.float64), (1.0, 0.6), others={"two": partner}
    )
    return found[0]


def test_what_alone_decides_is_necessary_and_sufficient() -> None:
    found = chain(lambda memory, seen: 8.0 * memory[:, 0])
    assert found.verdict == "both"
    assert found.gap > 0.9
    assert found.removed.change.mean < 0 < found.moved.change.mean
    assert max(map(abs, found.moved.random)) < 0.1


def test_a_behaviour_that_ends_loses_all_of_its_share() -> None:
    """Shares and changes are of the same moments, weighted alike, also where one level has most of them."""
    found = chain(lambda memory, seen: torch.minimum(8.0 * memory[:, 0], torch.where(seen[:, 1] > 0, 1.0, -1.0)), 300)
    assert 0.4 < found.shares[1] < 0.6
    assert found.back.change.mean == pytest.approx(-found.shares[1])


def test_a_loss_without_a_control_as_large_is_no_need() -> None:
    loss = Link(MeanEstimate(-0.6, -0.7, -0.5), [0.0], matched=False)
    assert not loss.stands_out
    assert dataclasses.replace(loss, matched=True).stands_out


def test_a_memory_that_nothing_reads_is_inert_and_one_that_acts_is_not() -> None:
    """With another moment's memory an agent that goes by a random unit acts otherwise at half of the moments."""
    values = np.random.default_rng(5).standard_normal((N, 6)).astype(np.float32)
    at = ChainMoments(np.arange(N), np.zeros(N, np.int64), values, values, np.arange(N))

    def agent(reads: bool) -> FunctionAgent:
        def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            up = (memory if reads else seen)[:, 0]
            return torch.stack([torch.zeros_like(up), up], 1), up

        return FunctionAgent(
            decide, OBSERVATIONS, gym.spaces.Discrete(2), remember=lambda seen, held: held, memory_size=6
        )

    assert swapped(agent(False), at) == 0.0
    assert swapped(agent(True), at) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("box", [False, True])
def test_what_it_sees_is_told_by_the_numbers_that_tell_it_alone(box: bool) -> None:
    """It acts by number 0, whose sign changes at half of the exchanges; number 1 says the concept "lamp", and nothing hears it."""
    rng = np.random.default_rng(0)
    seen = rng.choice([-1.0, 1.0], (400, 3)).astype(np.float32)
    agent = FunctionAgent(
        lambda sight, memory: (torch.stack([sight[:, 0], -sight[:, 0]], 1), sight[:, 1]),
        gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
        gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if box else gym.spaces.Discrete(2),
        remember=lambda sight, memory: memory,
        memory_size=1,
    )
    at = ChainMoments(np.arange(400), np.ones(400, np.int64), seen, np.zeros((400, 1), np.float32), np.arange(400) // 2)
    room = np.where(rng.random(400) < 0.1, np.nan, 20.0 * seen[:, 0])
    share = sees(agent, at, room)
    assert share is not None
    assert share.low is not None
    assert share.low <= 0.5 <= (share.high or 0.0)
    assert sees(agent, at, seen[:, 1]) == MeanEstimate(0.0, 0.0, 0.0)
    assert sees(agent, at, seen[:, 0] + 0.3 * rng.standard_normal(400)) is None  # no number tells it
    assert sees(agent, at, np.ones(400)) is None


def test_strength_is_of_what_the_concept_makes_and_a_tenth_of_nothing_is_not_absent() -> None:
    """A behaviour of 12 % of the steps, all of it by the concept: 8 points of 12 are most of it."""
    none, all_of_it = Link(MeanEstimate(0.0, -0.01, 0.01), [0.0]), Link(MeanEstimate(-0.12, -0.16, -0.08), [0.01])
    whole = CausalChain(
        "cue", "go", 1.0, 0.6, (0.0, 0.12), 0.0, [], none, none, all_of_it, MeanEstimate(0.1, 0.05, 0.2)
    )
    assert step._statement(whole, "memory").strength == "strong"
    unclear = Link(MeanEstimate(-0.04, -0.09, 0.01), [0.0])
    half = dataclasses.replace(whole, back=unclear, removed=none)
    assert half.verdict == "not settled"  # nine points are within a tenth of all steps, and most of the behaviour
    assert dataclasses.replace(half, back=none).verdict == "decodable only"
    assert dataclasses.replace(half, inert=True).verdict == "decodable only"


def test_one_of_two_conditions_is_necessary() -> None:
    found = chain(lambda memory, seen: torch.minimum(8.0 * memory[:, 0], torch.where(seen[:, 0] > 0, 1.0, -1.0)))
    assert found.verdict == "necessary"  # without what is seen, the direction is not enough
    assert found.moved.change.mean == 0.0


def test_one_of_two_ways_is_sufficient() -> None:
    found = chain(lambda memory, seen: torch.maximum(8.0 * memory[:, 0], torch.where(seen[:, 0] > 0, 1.0, -1.0)))
    assert found.verdict == "sufficient"  # what is seen brings the behaviour about as well
    assert found.back.change.mean == 0.0


def test_a_behaviour_that_ends_without_the_direction_is_not_said_to_go_on() -> None:
    """Some random direction ends it as well, so that it is not called necessary."""
    found = chain(lambda memory, seen: 8.0 * memory[:, 0])
    harsh = {name: dataclasses.replace(getattr(found, name), random=[-1.0]) for name in ("removed", "back")}
    found = dataclasses.replace(found, **harsh)
    assert found.verdict == "sufficient"
    assert found.ending
    # But it is necessary if the return is lost, and with no random direction.
    lost = Link(MeanEstimate(-0.9, -1.0, -0.8), [-0.2, 0.0])
    assert dataclasses.replace(found, success=lost).verdict == "both"
    assert dataclasses.replace(found, success=dataclasses.replace(lost, random=[-1.0])).verdict == "sufficient"


def test_an_exclusive_or_acts_with_both_and_is_necessary_with_neither() -> None:
    found = chain(lambda memory, seen: 8.0 * memory[:, 0] * memory[:, 1])
    assert not found.has_gap
    assert found.joint is not None
    assert (found.verdict, found.joint.partner) == ("jointly", "two")
    for estimate in (found.joint.gap, found.joint.moved.change):  # 1 − 0 − (0 − 1)
        assert estimate.mean == pytest.approx(2.0, abs=0.05)
    assert found.differs is not None
    assert found.differs.change.mean > 0.95  # although the mean change is about 0
    assert abs(found.moved.change.mean) < 0.15
    lost = Link(MeanEstimate(-0.9, -1.0, -0.8), [0.0])
    assert dataclasses.replace(found, success=lost, joint=None).verdict == "acts"  # it is no need, and moves the action


def test_without_a_difference_between_the_classes_nothing_is_necessary_and_a_link_must_close_it() -> None:
    lost, away = Link(MeanEstimate(-0.9, -1.0, -0.8), []), Link(MeanEstimate(-0.4, -0.5, -0.3), [0.0])
    nothing = Link(MeanEstimate(0.0, -0.05, 0.05), [])
    chain = CausalChain(
        "cue", "jump", 0.95, 0.6, (0.5, 0.52), 1.0, [], away, nothing, nothing, away.change, success=lost
    )
    assert chain.verdict == "acts"
    wide = dataclasses.replace(chain, shares=(0.4, 0.7), gap_estimate=MeanEstimate(0.3, -0.1, 0.7))
    assert wide.verdict == "acts"
    gap = dataclasses.replace(wide, gap_estimate=MeanEstimate(0.3, 0.2, 0.4))
    assert gap.verdict == "necessary"
    assert dataclasses.replace(gap, success=None, shares=(0.0, 0.9)).verdict == "contributes"
    assert dataclasses.replace(gap, shares=(0.7, 0.4)).verdict == "acts"  # it does more where it is taken away


def test_what_can_be_read_off_and_does_nothing_is_decodable_only() -> None:
    found = chain(lambda memory, seen: 4.0 * memory[:, 2])
    assert found.verdict == "decodable only"
    assert found.removed.change.holds_zero
    assert found.moved.change.holds_zero
    assert not found.control.holds_zero


def test_a_gradient_that_no_intervention_bears_out_is_spurious() -> None:
    # Steep in the concept, but another cause always outweighs it.
    found = chain(lambda memory, seen: memory[:, 0] + 3.0 * torch.tanh(memory[:, 2]))
    assert found.verdict == "spurious"
    assert abs(found.gradient) > 0.5


def test_without_power_nothing_is_said() -> None:
    found = chain(lambda memory, seen: memory[:, 0] - 1000.0)
    assert found.verdict == "not settled"
    assert found.control.holds_zero


def test_directions_hold_other_concepts_still() -> None:
    rng = np.random.default_rng(1)
    one = rng.integers(2, size=2000).astype(float)
    two = np.where(rng.random(2000) < 0.85, one, 1.0 - one)
    values = 0.3 * rng.standard_normal((2000, 4))
    values[:, 0] += one
    values[:, 1] += two
    pattern = separate_directions(values, {"one": one, "two": two})["one"].patterns[0]
    np.testing.assert_allclose(pattern, [1, 0, 0, 0], atol=0.08)
    alone = separate_directions(values, {"one": one})["one"].patterns[0]
    assert alone[1] > 0.5


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_the_step_tells_a_story_of_any_agent(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FEWEST_MOMENTS": 40, "READ": 0.6}.items():
        monkeypatch.setattr(step, name, value)
    for name, value in {"FEWEST_LEVELS": 10, "FEWEST_CONCEPTS": 2, "CONCEPTS": 2}.items():
        monkeypatch.setattr(held, name, value)
    # Greedily, an untrained agent does the same everywhere.
    monkeypatch.setattr(step, "behaviours_of", lambda *_: [Behaviour("walk", (1,))])
    agent = agent_of(memory, False)
    keep = () if memory != "none" else (step.site_of(agent),)
    how = {"keep": keep, "keep_states": True, "epsilon": 0.5, "acting": {"epsilon": 1.0}}
    record_inside(agent, Corridors(16), list(range(60)), tmp_path / "recording", **how)
    work = context_of(agent, Corridors, tmp_path, effort=0.1)
    assert step.STEP.why_not(work) is None
    section = step.run(work)
    assert section.skipped is None
    assert (work.out / "direction_0.npz").exists()
    for each in section.values["chains"]:
        assert len(each["removed"]["random"]) == 10
        assert each["verdict"] in step.ORDER


def test_a_verdict_is_told_with_the_change_that_it_rests_on() -> None:
    removed, back, moved = (MeanEstimate(mean, mean - 0.1, mean + 0.1) for mean in (-0.5, -0.8, 0.0))
    links = Link(removed, [0.3]), Link(moved, [0.7]), Link(back, [0.03, -0.04])
    chain = CausalChain("cue", "jump", 0.95, 0.6, (0.1, 0.9), 1.0, [0.1], *links, control=back)
    assert (chain.verdict, step._decisive(chain)) == ("necessary", ["back"])
    statement = step._statement(chain, "memory")
    assert (statement.kind, statement.weight) == ("uses", 0.8)
    assert "−80 [−90, −70] points (2 random directions, moved as far: at most 4)" in statement.text
    chain = dataclasses.replace(chain, joint=Joint("rain", moved, links[0]))
    for verdict in (*step.USES, *step.HOLDS):  # every template has all that it names
        assert (
            "memory"
            in step.WORDS.statement(verdict, chain=chain, site="memory", links=["moved"], concepts=["cue"]).text
        )


def test_random_directions_can_be_moved_as_far() -> None:
    rng = np.random.default_rng(2)
    one = rng.integers(2, size=500).astype(float)
    values = 0.1 * rng.standard_normal((500, 5)) + 3.0 * one[:, None] * np.eye(5)[0]
    basis = separate_directions(values, {"one": one})["one"]
    near = orthogonal_bases(basis, [0], values, one)

    def moves(of: Directions) -> float:
        change = Intervention(of, range(len(of)), "ablate_midpoint").edit(0)(torch.as_tensor(values)).numpy() - values
        return float(np.sqrt((change**2).sum(1).mean()))

    own = moves(basis)
    assert max(moves(each) for each in near) < 0.2 * own
    for each in moved_as_far(near, basis, 0, values):
        assert abs(moves(each) / own - 1.0) < 0.01
        assert abs(each.patterns[0] @ basis.patterns[0]) < 1e-9


def test_behaviours_are_groups_of_actions_that_share_a_word() -> None:
    batch = Corridors(8)
    batch.action_names = ["wait", "walk", "walk_fast"]
    episodes = play(agent_of("gru", False), batch, range(30))
    logits = np.random.default_rng(0).standard_normal(episodes.logits.shape).astype(np.float32)
    episodes = dataclasses.replace(episodes, logits=logits)
    found = behaviours_of(episodes, batch.action_space, batch.action_names)
    assert ("walk", (1, 2)) in [(each.name, each.actions) for each in found]
    # The rest of a group is the same behaviour, the other way round.
    assert (0,) not in [each.actions for each in found]


def test_what_only_the_value_depends_on_is_not_unused() -> None:
    """The value is unit 1, whose classes are 2 apart: its standard deviation is 1 and 0.2 of noise, together 1.02."""
    acts = lambda memory, seen: 4.0 * memory[:, 2]  # noqa: E731
    one, two = chain(acts), chain(acts, name="two")
    assert (one.verdict, two.verdict) == ("decodable only", "decodable only")
    assert two.value is not None
    assert one.value is not None
    assert two.value.change.mean == pytest.approx(2.0 / 1.02, abs=0.15)
    assert one.value.change.mean < 0.1
    assert [step._statement(each, "memory").list for each in (one, two)] == ["HOLDS, unused", "VALUE ONLY"]


def test_what_acts_in_the_level_and_not_in_the_memory_is_not_told_as_unused() -> None:
    found = chain(lambda memory, seen: 4.0 * memory[:, 2])
    none, turns = MeanEstimate(0.0, 0.0, 0.0), MeanEstimate(-0.4, -0.5, -0.3)
    assert not EditedLevel("mirror", none, none).acts
    edit = EditedLevel("mirror", none, turns)
    assert (edit.silent, edit.acts) == (True, True)
    said = step._statement(dataclasses.replace(found, edited=edit), "memory", moved=True)
    assert (said.key, said.list, said.line, said.stance) == ("story.elsewhere", "", "", "")


def removed(returns: float, random: float = 0.0, auc: float = 0.9, **more: Any) -> held.Removed:
    """Return what taking a concept away does to a return of 4 on 40 levels, beside a random removal."""

    def changed(to: float) -> CausalEffect:
        change = Change.of(np.full(40, 4.0), 4.0 + to + np.linspace(-0.1, 0.1, 40), np.arange(40))
        return CausalEffect(40, 40, change, {"end": change}, {}, change, MeanEstimate(0.0, 0.0, 0.0))

    variances = more.pop("variances", (0.2, [0.2]))
    return held.Removed(
        "",
        1,
        auc,
        0.5,
        0.5,
        0.6,
        more.pop("near", []),
        1.0,
        changed(returns),
        [changed(random)],
        *variances,
        None,
        **more,
    )


def test_what_was_taken_away_and_no_behaviour_tells_is_needed_or_not_settled() -> None:
    cases = {
        "needs": removed(-0.9),
        "costs": removed(0.9),
        "unsettled": removed(-0.9, variances=(0.2, [0.02])),  # no control as large
    }
    for key, one in cases.items():
        said = step._taken_away("weight", one, "memory")
        assert said.key == f"story.{key}"
        assert said.about == "weight"
    assert "(return 4 → 3.1)" in said.line
    assert step._taken_away("key", removed(0.0), "memory").line == "key"
    stays = step._taken_away("wind", removed(-0.9, rewritten=0.99), "memory")
    assert (stays.key, stays.line) == ("story.unsettled", "wind")
    assert "return" not in stays.text
    assert not removed(-0.9, rewritten=0.99).gone
    assert not cases["unsettled"].settles


def test_a_concept_that_follows_others_is_told_under_them() -> None:
    """Position follows colour and step; it is told alone if one of them does nothing. Its edit moves no score: no neighbour."""
    uses = chain(lambda memory, seen: 8.0 * memory[:, 0])
    none = chain(lambda memory, seen: 4.0 * memory[:, 2])
    near = [held.Neighbour("position", 0.95, 0.9)]
    ones = {
        "colour": removed(-2.0, near=near),
        "step": removed(-2.0),
        "position": removed(-2.0, auc=0.85, follows=["colour", "step"]),
    }
    still = EditedLevel("mirror", MeanEstimate(0.0, -0.01, 0.01), MeanEstimate(0.0, 0.0, 0.0))
    assert step._without_silent(ones, {}, ())["colour"].neighbours == near
    assert step._without_silent(ones, {}, {"position"})["colour"].neighbours == []  # an edit of it shows no reaction
    ones = step._without_silent(ones, {"position": [dataclasses.replace(none, edited=still)]}, ())
    assert ones["colour"].neighbours == []

    def keys(chains: dict[str, CausalChain]) -> dict[str, str]:
        named = [dataclasses.replace(each, concept=name) for name, each in chains.items()]
        return {said.about: said.key for said in step._statements(named, ones, "memory")}

    every = keys(dict.fromkeys(ones, uses))
    assert every == {"colour": "story.both", "step": "story.both", "position": "story.follows"}
    alone = keys({"colour": uses, "position": uses, "step": none})
    assert alone["position; colour; step"] == "story.both"


def test_an_effect_that_no_difference_bears_out_and_is_small_is_not_settled() -> None:
    """Twelve points, whose interval begins below a tenth of what the concept could change: nothing clear."""
    none, little = Link(MeanEstimate(0.0, -0.01, 0.01), [0.0]), Link(MeanEstimate(-0.12, -0.18, -0.04), [0.01])
    weak = CausalChain("cue", "go", 1.0, 0.6, (0.5, 0.5), 0.0, [], none, none, little, MeanEstimate(0.2, 0.1, 0.3))
    assert weak.verdict == "acts"
    assert step._statement(weak, "memory").key == "story.acts_weakly"
    clear = dataclasses.replace(weak, back=Link(MeanEstimate(-0.12, -0.18, -0.06), [0.01]))
    assert step._statement(clear, "memory").key == "story.acts"


def test_the_score_moves_by_what_the_edit_changes() -> None:
    """Lamp A is flipped at the start: its unit, read as 0 and 1, changes by 1 then, and unit 5 by as much 5 steps later."""
    agent, rows = AGENTS["a5"], np.arange(12)
    plain = play(agent, Lamps(12, "a5"), rows, keep_states=True)
    starts = snapshots_of(plain, rows, np.zeros(12, np.int64))
    pair = counterfact(agent, lambda n: Lamps(n, "a5"), starts, edit="flip_a")
    assert pair is not None
    for unit in (0, A5, CLOCK):
        reads = np.eye(1, SIZE, unit)
        basis = Directions("concept", ["lamp"], np.zeros(SIZE), 2.0 * reads, 0.5 * reads, np.zeros((0, 1)), np.zeros(1))
        one = held.HeldConcept(Erasure(basis, 1.0, 0.5, 0.5, 0.6, 0.1, []), 0.5, Classes(True, 0.5, True), 1.0)
        moved = step._moved_by(agent, (pair.plain, pair.changed), rows, one, "memory")
        was = plain.states["a0"][:, 0]
        np.testing.assert_allclose(moved, np.zeros(12) if unit == CLOCK else np.where(was, -1.0, 1.0), atol=1e-6)
