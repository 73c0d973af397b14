"""Two agents side by side: planted ones whose causes are known, and networks of different shapes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.cli.interpret_agent import agent_command
from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.interpret.agent import comparison
from rlhf_ray.interpret.agent.comparison import (
    AgentPair,
    alike,
    comparison_study,
    concepts,
    objects,
    played,
    write_comparison,
)
from rlhf_ray.interpret.agent.comparison.alike import similarity
from rlhf_ray.interpret.agent.comparison.concepts import ComparedConcept
from rlhf_ray.measure.intervals import MeanEstimate, mean_interval
from rlhf_ray.study import run_study
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.contexts import run_step

STEPS = 6
COLOUR, SHAPE = 0, 1


class Signals:
    """Each step shows a signal twice, as a colour and as a shape, which always agree until an edit. Acting on it pays 1."""

    def __init__(self, n: int, box: bool = False):
        self.name, self.n = "Signals", n
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space: gym.Space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if box else gym.spaces.Discrete(2)
        self.action_names = ["rest", "go"]
        self.edits = {"repaint": "turns the colour", "reshape": "turns the shape"}

    def reset(self, levels: Sequence[int]) -> Array:
        self._drawn = [np.random.default_rng(level).integers(2, size=STEPS + 1).tolist() for level in levels]
        self._copies = [{"level": at, "step": 0, "turned": [1, 1]} for at in range(self.n)]
        return self._observations()

    def step(self, actions: Array) -> BatchStep:
        acted = np.asarray(actions, np.float64).reshape(self.n)
        go = acted > (0.5 if isinstance(self.action_space, gym.spaces.Discrete) else 0.0)
        ended = np.array([copy["step"] >= STEPS for copy in self._copies])
        rewards = np.where(ended, 0.0, go == (self._signals() > 0))
        for copy, over in zip(self._copies, ended, strict=True):
            copy["step"] += 0 if over else 1
            copy["turned"] = [1, 1]
        ended = np.array([copy["step"] >= STEPS for copy in self._copies])
        return BatchStep(
            self._observations(), rewards, ended, np.zeros(self.n, bool), ["over" * bool(e) for e in ended]
        )

    def states(self) -> list[bytes]:
        return [json.dumps([copy, drawn]).encode() for copy, drawn in zip(self._copies, self._drawn, strict=True)]

    def restore(self, states: Sequence[bytes]) -> Array:
        self._copies, self._drawn = (list(part) for part in zip(*map(json.loads, states), strict=True))
        return self._observations()

    def describe(self) -> dict[str, Array]:
        return {"signal": self._signals() > 0}

    def masks(self) -> dict[str, BoolArray]:
        return {}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        for copy in self._copies:
            copy["turned"][COLOUR if name == "repaint" else SHAPE] *= -1
        return self._observations()

    def close(self) -> None:
        pass

    def _signals(self) -> Array:
        return np.array([2 * d[c["step"]] - 1 for c, d in zip(self._copies, self._drawn, strict=True)], np.float32)

    def _observations(self) -> Array:
        turned = np.array([copy["turned"] for copy in self._copies], np.float32)
        noise = np.array(
            [[3.0 * np.sin(7.0 * c["step"] + 3.0 * d[0])] for c, d in zip(self._copies, self._drawn, strict=True)]
        )
        return np.concatenate([self._signals()[:, None] * turned, noise], 1).astype(np.float32)


def planted(
    looks_at: int | None, box: bool = False, memory: Sequence[float] | None = (1.0, 1.0, 1.0), name: str = ""
) -> FunctionAgent:
    """An agent that acts on the colour, on the shape or on nothing, and holds what it sees times ``memory``, if it has one."""
    batch = Signals(1, box)
    scale = None if memory is None else torch.tensor(memory)

    def decide(seen: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        read = seen if scale is None else held / scale
        strength = torch.full_like(read[:, 0], 0.5) if looks_at is None else 2.0 * read[:, looks_at]
        other = torch.full_like(strength, -1.0) if box else -strength
        return torch.stack([strength / 2.0, other] if box else [other, strength], 1), strength

    return FunctionAgent(
        decide, batch.observation_space, batch.action_space, memory_size=0 if scale is None else 3,
        remember=None if scale is None else lambda seen, held: seen * scale, name=name or f"looks at {looks_at}",
    )  # fmt: skip


def pair_of(first: FunctionAgent, second: FunctionAgent, box: bool = False) -> AgentPair:
    return AgentPair(first, second, "Signals", partial(Signals, box=box), 0, 0.2)


@pytest.mark.parametrize("box", [False, True])
def test_agents_with_the_same_cause_use_the_same_features(tmp_path: Path, box: bool) -> None:
    torch.set_num_threads(1)
    pair = pair_of(planted(COLOUR, box), planted(COLOUR, box, (-3.0, 0.5, 2.0), "other"), box)
    sections = run_study(comparison_study(pair, tmp_path))
    assert all(check.passed is not False for section in sections for check in section.checks)
    page, answer = write_comparison(pair, sections, tmp_path, {})
    assert answer.short == "Yes, mostly"
    assert "signal" in answer.features["both"]
    assert "edit repaint" in answer.features["both"]
    assert not [*answer.features["first"], *answer.features["second"]]
    text = page.read_text()
    assert text.index("Do they use the same features?") < text.index("Yes, mostly") < text.index("Evidence")
    twin = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert twin["answer"]["short"] == "Yes, mostly"


@pytest.mark.parametrize("memory", [None, (1.0, 2.0, 1.0)])
def test_the_same_behaviour_for_another_reason_comes_apart_under_an_edit(memory: Sequence[float] | None) -> None:
    torch.set_num_threads(1)
    pair = pair_of(planted(COLOUR, memory=memory), planted(SHAPE, memory=memory))
    sections = {section.name: section for section in (run_step(part, pair) for part in (alike, objects))}
    assert sections["alike"].values["actions"]["same"]["mean"] == 1.0
    found = {each["name"]: each for each in sections["objects"].values["features"]}
    assert found["edit repaint"]["use"] == "first"
    assert found["edit reshape"]["use"] == "second"
    for edit in ("edit repaint", "edit reshape"):
        assert (found[edit]["same_before"]["mean"], found[edit]["same_after"]["mean"]) == (1.0, 0.0)
    answer = comparison.verdict.answer(list(sections.values()), pair.names)
    assert answer.short == "No"


def test_another_cause_is_told_and_an_agent_without_inside_is_no_obstacle() -> None:
    torch.set_num_threads(1)
    pair = pair_of(planted(COLOUR), planted(None))
    feature = next(each for each in run_step(concepts, pair).values["features"] if each["name"] == "signal")
    assert feature["held"] == [True, True]
    assert feature["use"] == "first"
    difference = run_step(played, pair).values["difference"]["returns"]["difference"]
    assert difference["low"] > 2.0
    acted = run_step(alike, pair).values["actions"]
    assert abs(acted["same"]["mean"] - acted["chance"]) < 0.05
    bare = run_step(concepts, pair_of(planted(COLOUR), planted(None, memory=None)))
    assert bare.skipped


def test_networks_of_different_shapes_are_compared_and_finished_parts_are_kept(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    names = ("played", "alike", "objects")
    pair = AgentPair(agent_of("gru", False), agent_of("none", False), "Corridor", Corridors, 0, 0.1)
    assert pair.names == ("agent (first)", "agent (second)")
    kept: dict[str, bool] = {}
    sections = run_study(comparison_study(pair, tmp_path), names, finished=kept.__setitem__)
    assert all(check.passed is not False for section in sections for check in section.checks)
    assert sections[1].values["held"]["both"]["mean"] <= 1.0
    assert len(sections[1].values["actions"]["untrained"]) == 2
    assert not any(kept.values())
    (tmp_path / "alike" / "report" / "section.json").unlink()
    again = AgentPair(pair.first, pair.second, "Corridor", Corridors, 0, 0.1)
    second = run_study(comparison_study(again, tmp_path), names, finished=kept.__setitem__)
    assert second[1].values == sections[1].values
    assert kept == {"played": True, "alike": False, "objects": True}
    with pytest.raises(SettingError, match="different action spaces"):
        AgentPair(agent_of("none", False), agent_of("none", True), "Corridor", Corridors)


class FewSignals(Signals):
    """Three different levels, by other names again and again."""

    def reset(self, levels: Sequence[int]) -> Array:
        return super().reset([level % 3 for level in levels])


def test_intervals_of_a_comparison_are_over_distinct_levels() -> None:
    """Of three levels, the interval is Student's with two degrees of freedom."""
    pair = AgentPair(planted(COLOUR), planted(None), "Few signals", FewSignals, 0, 0.2)
    goes = [np.random.default_rng(level).integers(2, size=STEPS + 1)[:STEPS] for level in range(3)]
    found = run_step(played, pair).values
    losses = [STEPS - level.sum() for level in goes]  # the other agent always goes
    assert (found["levels"], found["distinct"]) == (40, 3)
    low, high = mean_interval([float(loss) for loss in losses]) or (0, 0)
    assert found["difference"]["returns"]["difference"] == pytest.approx(
        {"mean": np.mean(losses), "low": low, "high": high}
    )
    frames = pair.frames
    same = frames.seen[:, COLOUR] > 0
    by_level = [same[frames.episodes.levels[frames.moments.rows] % 3 == level].mean() for level in range(3)]
    assert run_step(alike, pair).values["actions"]["same"] == pytest.approx(
        dict(zip(("low", "high"), mean_interval(by_level) or (), strict=True)) | {"mean": np.mean(by_level)}
    )


class Fixed(Signals):
    """Its states can't be restored."""

    def states(self) -> list[bytes]:
        raise SettingError("There are no states.")


def test_levels_that_cannot_be_edited_are_said_to_be_none() -> None:
    section = run_step(objects, AgentPair(planted(COLOUR), planted(SHAPE), "Fixed", Fixed, 0, 0.2))
    assert section.statements[-1].key == "objects.no_edits"
    assert all(each["name"].startswith("feature") for each in section.values["features"])


def test_a_use_takes_a_whole_interval_and_so_does_its_absence() -> None:
    def tested(
        acts: tuple[float, float, float], returns: tuple[float, float, float], **more: Any
    ) -> concepts.TestedConcept:
        return concepts.TestedConcept(None, MeanEstimate(*acts), [0.05], 10.0, MeanEstimate(*returns), [-0.5], **more)

    still, hidden = (0.0, 0.0, 0.01), (-0.2, -0.3, 0.1)
    uses = tested((0.3, 0.2, 0.4), hidden)
    assert (uses.used, uses.unused) == (True, False)
    for unclear in (
        tested((0.06, 0.04, 0.2), hidden),  # reaches what random removals do
        tested(still, (-0.8, -1.6, -0.4)),  # so does the return
        tested(still, hidden, gone=False),  # another direction may serve it
        tested((0.3, 0.2, 0.4), (-5.0, -6.0, -4.0), matched=False),  # nothing to compare it with
    ):
        assert (unclear.used, unclear.unused) == (False, False)
        assert ComparedConcept("", unclear, tested(still, hidden)).use == "open"
        assert ComparedConcept("", uses, unclear).use == "unsettled"
    assert ComparedConcept("", uses, tested(still, hidden)).use == "first"
    assert ComparedConcept("", tested(still, hidden), concepts.TestedConcept(None, nothing_reads=True)).use == "neither"
    assert not ComparedConcept("", concepts.TestedConcept(None), concepts.TestedConcept(None)).tested


def test_the_command_refuses_steps_of_one_agent() -> None:
    with pytest.raises(SettingError, match="--steps"):
        agent_command(["here", "--against", "there", "--steps", "bases"])


def test_similarity_ignores_rotation_and_sees_independence() -> None:
    rng = np.random.default_rng(0)
    one = rng.standard_normal((2000, 6))
    turn = np.linalg.qr(rng.standard_normal((6, 6))).Q
    assert similarity(one, 3.0 * one @ turn + 1.0) == pytest.approx(1.0)
    assert similarity(one, rng.standard_normal((2000, 4))) < 0.02
    assert similarity(one, np.ones((2000, 2))) is None
