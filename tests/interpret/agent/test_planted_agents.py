"""Agents that act for a known reason: the tools name it, and don't name what the agent only holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from rlhf_ray.agents.agent import MEMORY, NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_moments, moments_of
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.agents.replay import site_of, values_at
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent import concepts, held
from rlhf_ray.interpret.agent.candidates import Candidate, mixed_with, sensitivities, separate_directions, with_concepts
from rlhf_ray.interpret.agent.concepts import concepts_at
from rlhf_ray.interpret.agent.effects import effect
from rlhf_ray.interpret.agent.questions import objects
from rlhf_ray.interpret.agent.questions import quantities as of
from rlhf_ray.interpret.agent.questions.objects import masks_at
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.questions.samples import through_time
from rlhf_ray.interpret.agent.steps import attribution, counterfactuals, interventions
from rlhf_ray.interpret.attribution import make_methods
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from tests.interpret.agent.directions import linear
from tests.interpret.agent.lamps import ACTED, AGENTS, BACK, OBSERVED, STEPS, Lamps, planted
from tests.interpret.contexts import context_of

RNG = np.random.default_rng
EVERY = make_methods(attribution.METHODS)


@pytest.fixture(scope="module")
def played() -> Mapping[str, Episodes]:
    torch.set_num_threads(1)
    return {rule: play(agent, Lamps(60, rule), range(60), keep_states=True) for rule, agent in AGENTS.items()}


def units(size: int) -> Directions:
    return linear(np.eye(size), np.zeros(size))


def reflected(rule: str, episodes: Episodes, name: str) -> Mapping[str, float]:
    """Mirror the direction of a concept at every step."""
    agent, values = AGENTS[rule], episodes.memory[:, 1:][episodes.real].astype(np.float64)
    known = {name: concepts_at(episodes)[name][episodes.real]}
    change = Intervention(separate_directions(values, known)[name], [0], "reflect")
    after = play(agent, Lamps(60, rule), range(60), hooks=[change], frames=False)
    found = effect(episodes, after, agent.action_space)
    return {"returns": found.returns.difference.mean, "acts": found.acts.mean}


@pytest.mark.parametrize(
    ("rule", "causes", "held"),
    [("a5", ["a5", "a2", "a0"], ["b3", "b5"]), ("both", ["a2", "b3"], ["a5", "b5"]), ("late", [concepts.ELAPSED], ["b0"]),
     ("a", [], ["a0", "a5", "b0"]), ("echo", [], ["a0", "b5"])],
)  # fmt: skip
def test_what_is_needed_and_what_is_only_held(
    played: Mapping[str, Episodes], rule: str, causes: list[str], held: list[str]
) -> None:
    """An event 5 steps ago, a sum of two memories, the time; what the agent sees now needs no memory."""
    changes = [reflected(rule, played[rule], name)["returns"] for name in causes]
    assert max(changes, default=-6.0) < -4.0
    for name in held:  # all can be read off the memory
        found = reflected(rule, played[rule], name)
        assert found["returns"] > 0.4 * max(changes, default=0.0) - 1e-9, name
        assert causes or found["acts"] == 0.0


def test_every_cause_is_among_the_concepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All concepts are read equally well, so that their order by AUC would leave the choice to chance."""
    monkeypatch.setattr(held, "FEWEST_CONCEPTS", 6)
    agent = AGENTS["both"]
    record_inside(agent, Lamps(20, "both"), list(range(80)), tmp_path / "recording")
    _, found = held.held_concepts(context_of(agent, partial(Lamps, rule="both"), tmp_path, effort=0.1))
    assert len(found) == 6
    assert {"a2", "b3"} <= found.keys()
    by = {name: one.sensitivity for name, one in found.items()}
    assert min(by[name] for name in ("a2", "b3")) > 4.0 * min(by.values())
    for (
        name,
        one,
    ) in found.items():  # each lamp's past is one unit, and nothing else holds it; time is also in what is not yet seen
        if name != concepts.ELAPSED:
            assert (len(one.erasure.basis), one.erasure.gone, one.erasure.neighbours) == (1, True, [])


def test_a_quantity_that_no_memory_enters_has_no_candidates(played: Mapping[str, Episodes]) -> None:
    found = sensitivities(AGENTS["a"], played["a"], MEMORY, units(AGENTS["a"].memory_size), RNG(0))
    np.testing.assert_array_equal(found, 0.0)


def test_elapsed_time_is_a_concept_of_every_environment(played: Mapping[str, Episodes]) -> None:
    episodes = played["late"]
    label = concepts.library(episodes)[concepts.ELAPSED][:, :-1][episodes.real]
    values = episodes.memory[:, 1:][episodes.real].astype(np.float64)
    groups = np.repeat(episodes.levels, episodes.lengths)
    (found,) = concepts.decode(values, {concepts.ELAPSED: label}, groups)
    assert found.score > 0.99


def test_a_memory_that_says_nothing_at_once_is_found_by_what_it_says_later() -> None:
    """The cell state of an LSTM, which no head reads; the hidden state goes nowhere else."""
    torch.manual_seed(0)
    network = ActorCriticNetwork(OBSERVED, ACTED, PolicyShape(hidden=(8,), memory="lstm", memory_units=4))
    for name, weights in network.named_parameters():
        torch.nn.init.normal_(weights, std=1.5)
        if name == "cell.weight_hh_l0":
            torch.nn.init.zeros_(weights)
        if name == "encoder.0.weight":
            weights.data[:, 2] = 0.0  # else the echo of another action comes back
    agent = NetworkAgent(network, OBSERVED, ACTED)
    episodes = play(agent, Lamps(40), range(40))
    basis = units(8)
    found = sensitivities(agent, episodes, MEMORY, basis, RNG(0))
    assert found[4:].min() > 0.001
    step, differs = 3, {}
    for part, components in (("hidden", range(4)), ("cell", range(4, 8))):
        change = Intervention(basis, list(components), "steer", amount=-3.0, when={step})
        after = play(agent, Lamps(40), range(40), hooks=[change])
        differs[part] = (np.abs(after.logits - episodes.logits) > 1e-4).any(2).mean(0)
    assert differs["hidden"][step] == 1.0
    assert differs["hidden"][step + 1 :].max() == 0.0
    assert differs["cell"][step] == 0.0
    assert differs["cell"][step + 1] > 0.9


@pytest.mark.slow
def test_what_moves_actions_without_reward_is_not_called_unneeded(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The agent follows lamp A; the reward is for another rule, so that the return hardly changes."""
    for module, name, value in ((interventions, "COMPONENTS", 0), (held, "FEWEST_LEVELS", 20)):
        monkeypatch.setattr(module, name, value)

    class Unrewarded(Lamps):
        def wanted(self):
            return np.zeros(self.n) > 2.0 * np.ones(self.n)

        def step(self, actions):
            return super().step(np.zeros(self.n, int))

    agent = AGENTS["a5"]
    record_inside(agent, Unrewarded(40), list(range(60)), tmp_path / "recording")
    section = interventions.run(context_of(agent, Unrewarded, tmp_path, effort=0.2))
    verdicts = {each["concept"]: each["verdict"] for each in section.values["effects"]}
    moving, still = ({name for name in verdicts if name[0] == lamp} for lamp in "ab")
    assert moving
    assert {verdicts[name] for name in moving} == {"moves actions"}
    assert {verdicts[name] for name in still} <= {"decodable only"}


@pytest.mark.parametrize(
    ("rule", "uses", "later"), [("a", "flip_a", ""), ("echo", "flip_echo", ""), ("a5", "", "flip_a")]
)
def test_edits_show_what_actions_and_value_depend_on(tmp_path: Path, rule: str, uses: str, later: str) -> None:
    """The value depends on lamp B, up or down, and no action does."""
    record_inside(AGENTS[rule], Lamps(20, rule), list(range(20)), tmp_path / "recording", keep_states=True)
    work = context_of(AGENTS[rule], partial(Lamps, rule=rule), tmp_path, effort=0.2)
    said: dict[str, list[str]] = {"uses": [], "holds": [], "ignores": []}
    for each in counterfactuals.run(work).statements:
        said[each.kind].append(each.text.split(":")[0])
    reacts = "The agent reacts to the edit"
    assert said == {
        "uses": [f"{reacts} “{uses}”" if uses else f"{reacts} “{later}” later, not at once"],
        "holds": ["The agent's value reacts to the edit “flip_b”, and its actions don't"],
        "ignores": [
            f"The agent does not react to the edit “{edit}”"
            for edit in ("flip_a", "flip_echo")
            if edit not in (uses, later)
        ],
    }


class LastStep(Lamps):
    """Only the last step is worth anything: 1 if the action is what lamp A was at step 0, whatever the agent was shown."""

    def __init__(self, n: int):
        super().__init__(n)
        self.fields.append(("truth", "?"))

    def reset(self, levels):  # type: ignore[no-untyped-def]
        seen = super().reset(levels)
        self.state["truth"] = self.state["lamps"][:, 0, BACK] > 0
        return seen

    def step(self, actions):  # type: ignore[no-untyped-def]
        right = (self.state["step"] == STEPS - 1) & (actions == self.state["truth"])
        return dataclasses.replace(super().step(actions), rewards=np.where(right, 1.0, 0.0))


def keep_first(seen: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Remember what the agent saw of lamp A at step 0, and count."""
    return torch.cat([torch.where(memory[:, 1:] == 0, seen[:, :1], memory[:, :1]), memory[:, 1:] + 1.0], 1)


def test_an_edit_that_matters_at_one_moment_is_told_with_that_moment(tmp_path: Path) -> None:
    """Lamp A at step 0 decides the last action and so the return; at all other moments no lamp does anything."""

    def decide(seen: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drive = torch.where(memory[:, 1] >= STEPS, memory[:, 0], -1.0)
        return torch.stack([-drive, drive], 1), torch.zeros(len(seen))

    agent = FunctionAgent(decide, OBSERVED, ACTED, remember=keep_first, memory_size=2, name="last")
    record_inside(agent, LastStep(20), list(range(90)), tmp_path / "recording", keep_states=True)
    section = counterfactuals.run(context_of(agent, LastStep, tmp_path, effort=1.0))
    assert {each.key: each.about for each in section.statements if each.kind == "uses"} == {
        "counterfactuals.reacts_at": "flip_a"
    }
    stages = section.values["edits"]["flip_a"]["stages"]
    assert [stages[0][name] for name in ("first", "last")] == [0, 0]
    assert [stages[0]["returns"][name] for name in ("before", "after")] == [1.0, 0.0]
    assert stages[0]["acts"]["mean"] == pytest.approx(1.0 / STEPS)
    assert stages[0]["action"]["mean"] == 0.0
    assert len(stages) == 8
    for stage in stages[1:]:
        assert stage["returns"]["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert section.values["edits"]["flip_b"]["stages"][0]["returns"]["difference"]["mean"] == 0.0


@pytest.mark.parametrize(("rule", "cause"), [("a", 0), ("echo", 2)])
def test_maps_lie_on_the_cause(played: Mapping[str, Episodes], rule: str, cause: int) -> None:
    agent = AGENTS[rule]
    moments = draw_moments(agent, played[rule], 40, RNG(0))
    for quantity, at in ((of.log_odds(agent.action_space, 1), cause), (of.value(), 1)):
        question = AgentQuestion(agent, quantity).against(moments)
        for name, method in EVERY.items():
            size = np.abs(method.attribute(question, moments)["frame"]).sum(0)
            assert size[at] > 0.1, name
            assert np.delete(size, at).max() < 1e-5 * size[at], name


def test_a_map_through_time_finds_the_event(played: Mapping[str, Episodes]) -> None:
    agent, episodes = AGENTS["a5"], played["a5"]
    moments = moments_of(agent, episodes, np.arange(20), np.full(20, 4), ahead=6)
    question = AgentQuestion(agent, of.log_odds(agent.action_space, 1), 5)
    found = np.abs(through_time(question, moments, question.against(moments).scales)["observations"]).sum(0)
    assert found[0, 0] > 1.0
    found[0, 0] = 0.0
    assert found.max() == 0.0


def test_empty_maps_are_not_called_unfaithful(tmp_path: Path) -> None:
    agent = AGENTS["a5"]
    record_inside(agent, Lamps(20, "a5"), list(range(20)), tmp_path / "recording")
    work = context_of(agent, Lamps, tmp_path)
    judged = draw_moments(agent, play(agent, Lamps(20), range(20)), 30, RNG(0))
    found, orders, _ = attribution.maps_of(work, judged, [of.chosen_action(agent.action_space)], EVERY)
    assert found[0].unmoved
    assert not orders


def test_an_agent_that_is_as_sure_of_either_action_still_depends_on_what_it_sees(tmp_path: Path) -> None:
    """By a threshold, so that no gradient tells: at the mean of lamp A, the log-odds of one of the actions fall from 2 to -2."""
    agent = planted(lambda seen, memory: torch.where(seen[:, 0] > 0, 1.0, -1.0), "threshold")
    record_inside(agent, Lamps(20), list(range(20)), tmp_path / "recording")
    work = context_of(agent, Lamps, tmp_path)
    judged = draw_moments(agent, play(agent, Lamps(20), range(20)), 30, RNG(0))
    found, _, _ = attribution.maps_of(work, judged, [of.chosen_action(agent.action_space)], EVERY)
    assert not found[0].unmoved
    on = float((judged.observations[:, -1, 0] > 0).float().mean())
    mean = float(judged.observations[:, -1, 0].mean())
    turned = on if mean <= 0 else 1.0 - on
    np.testing.assert_allclose(found[0].numbers, [4.0 * turned, 0.0, 0.0], atol=1e-6)


def colours(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How much yellow (coins) and how much else that is red and not blue, or bright and grey, is in the frame."""
    red, green, blue = (seen[..., at] for at in range(3))
    yellow = torch.relu(green - blue - 100.0).flatten(1).sum(1) / 300.0
    enemy = torch.relu((red - green - 140.0) * (blue < 100.0)).flatten(1).sum(1) / 100.0
    saw = torch.relu(torch.minimum(red - 180.0, 245.0 - red) * (blue > 215.0)).flatten(1).sum(1) / 40.0
    return yellow, enemy + saw


@pytest.mark.parametrize(
    ("world", "other", "edits"),
    [("MiniRun", "saw", ("remove_coin", "remove_saw")), ("StaticBounce", "enemy", ("move_coin", "remove_enemy"))],
)
def test_objects_that_act_and_objects_that_are_worth(world: str, other: str, edits: tuple[str, str]) -> None:
    """Actions depend on the coin and ignore the other thing; the value does the opposite."""
    batch = make_batch(f"rlhf_ray/{world}-v0", 30)
    actions = int(batch.action_space.n)  # type: ignore[attr-defined]

    def decide(seen: torch.Tensor, _memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        coin, another = colours(seen)
        logits = torch.zeros(len(seen), actions)
        logits[:, 1] = 1.0 + coin
        return logits, another

    agent = FunctionAgent(decide, batch.observation_space, batch.action_space, name=world)
    episodes = play(agent, batch, range(60), max_steps=20, epsilon=0.3, keep_states=True)
    moments = draw_moments(agent, episodes, 90, RNG(0))
    states = [episodes.env_states[i][t] for i, t in zip(moments.rows, moments.steps, strict=True)]
    masks = {name: mask for name, mask in masks_at(batch, states).items() if name in ("coin", other)}
    for quantity, cause in ((of.log_odds(agent.action_space, 1), "coin"), (of.value(), other)):
        question = AgentQuestion(agent, quantity).against(moments)
        painted = objects.by_painting(question, moments, masks, RNG(1))
        edited = objects.by_editing(question, moments, batch, states, edits)
        saliency = np.abs(EVERY["saliency"].attribute(question, moments)["frame"]).sum(-1)
        for name, edit in zip(("coin", other), edits, strict=True):
            size, control = (np.nanmean(np.abs(each[name])) for each in (painted.changes, painted.control))
            there = masks[name].any((1, 2))
            inside = (saliency[there] * masks[name][there]).sum() / saliency.sum()
            if name == cause:
                assert size > 0.2
                assert size > 4.0 * control
                assert inside > 0.4
                assert edit == "move_coin" or np.nanmean(np.abs(edited[edit])) > 0.2
            else:
                assert size < 1e-4
                assert inside < 0.1
                changed = edited[edit][np.isfinite(edited[edit])]
                assert np.abs(changed).mean() < 0.05 if len(changed) else True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_unit_that_acts_is_found_without_memory(name: str) -> None:
    """Unit 0 balances; the others hold what nothing reads. With Discrete and with Box actions."""
    batch = make_batch(name, 12)
    box = isinstance(batch.action_space, gym.spaces.Box)
    network = ActorCriticNetwork(batch.observation_space, batch.action_space, PolicyShape(hidden=(4,)))
    size = batch.observation_space.shape[0]  # type: ignore[index]
    weights = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    weights[0] = torch.tensor([0.0, -0.5, -0.5] if box else [0.0, 0.05, 0.5, 0.2])
    actor = network.actor
    with torch.no_grad():
        actor[0].weight.copy_(weights), actor[0].bias.zero_(), actor[2].bias.zero_(), actor[2].weight.zero_()
        actor[2].weight[-1, 0] = 3.0
    agent = NetworkAgent(network, batch.observation_space, batch.action_space)
    site = site_of(agent)
    episodes = play(agent, batch, range(12), max_steps=100, keep=[site])
    assert values_at(agent, episodes, site).shape[2] == 4
    basis = units(4)
    found = sensitivities(agent, episodes, site, basis, RNG(0))
    assert found[0] > 0.05
    np.testing.assert_allclose(found[1:], 0.0, atol=1e-9)
    acts, returns = [], []
    for unit in range(4):
        change = Intervention(basis, [unit], "reflect", site=site)
        after = play(agent, batch, range(12), max_steps=100, hooks=[change], frames=False)
        measured = effect(episodes, after, agent.action_space)
        acts.append(measured.acts.mean)
        returns.append(measured.returns.difference.mean)
    assert acts[0] > 0.3
    assert acts[1:] == [0.0] * 3
    assert returns[1:] == [0.0] * 3
    assert returns[0] != 0.0


def test_the_cue_in_memory_acts_and_the_time_in_memory_does_not() -> None:
    batch = make_batch("rlhf_ray/CueRun-v0", 80)

    def remember(seen: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        sky = seen[:, 0, 6]
        cue = torch.where(sky[:, 1] < 100.0, (sky[:, 0] - sky[:, 2]) / 190.0, memory[:, 0])
        return torch.stack([cue, memory[:, 1] + 0.1], 1)

    def decide(seen: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        next_cell = seen[:, 6, 6]  # two pixels a cell; the agent is in column 2
        gate = ((next_cell[:, 0] - next_cell[:, 2]).abs() < 1.0).float()
        jump = gate * memory[:, 0]
        return torch.stack([torch.full_like(jump, -1.0), torch.zeros_like(jump), 4.0 * jump - 0.1], 1), memory[:, 1]

    space = batch.observation_space, batch.action_space
    agent = FunctionAgent(decide, *space, remember=remember, memory_size=2, name="cue and time")
    before = play(agent, batch, range(80))
    assert (before.returns > 0).mean() > 0.85
    values = before.memory[:, 1:][before.real].astype(np.float64)
    known = {name: each[before.real] for name, each in concepts_at(before).items() if name in ("cue", concepts.ELAPSED)}
    found = {}
    for name, basis in separate_directions(values, known).items():
        # Once, when the cue was seen: what is only kept would be mirrored back by the next step.
        after = play(agent, batch, range(80), hooks=[Intervention(basis, [0], "reflect", when={1})])
        found[name] = effect(before, after, agent.action_space)
    assert found["cue"].outcomes["first_gate"].after > 0.8
    assert found["cue"].returns.difference.high < -5.0
    assert found[concepts.ELAPSED].returns.difference.mean > -1.5


def test_a_component_is_named_by_the_concept_that_it_reads() -> None:
    rng = np.random.default_rng(0)
    cue, other = rng.random((2, 400)) > 0.5
    values = np.stack([np.where(cue, -1.0, 1.0), 0.3 * other, np.zeros(400)], 1) + 0.1 * rng.standard_normal((400, 3))
    components = [Candidate(units(3), (number,), f"unit {number}", 1.0) for number in range(3)]
    named = with_concepts(components, values, {"cue": cue, "other": other, "never": np.zeros(400)}, 0.8)
    assert [each.reads for each in named] == ["cue", "other", ""]
    expected = roc_auc_score(other, values[:, 1])
    assert named[1].auc == pytest.approx(expected)
    assert named[0].auc == pytest.approx(1.0)


def test_a_component_that_two_concepts_make_is_a_mix_and_one_that_noise_blurs_is_not() -> None:
    """The weight, drawn evenly from 0.1 to 1, and a quarter of the key, -1 or 1: 52 % and 48 % of the variance."""
    rng = RNG(0)
    weight, key, third = rng.uniform(0.1, 1.0, 800), rng.choice([-1.0, 1.0], 800), rng.choice([-1.0, 1.0], 800)
    known = {"weight": weight, "key": key, "third": third}
    assert {mixed_with(weight + 0.25 * key, known, best) for best in ("weight", "key")} == {"key", "weight"}
    assert mixed_with(key + 0.5 * rng.standard_normal(800), known, "key") == ""
    assert mixed_with(key + 0.4 * third, known, "key") == ""  # 14 % of the variance
    assert mixed_with(key + 0.6 * third, known, "key") == "third"  # 26 %
    unseen = np.where(np.arange(800) % 3, weight + 0.25 * key, 0.0)  # a third of the steps come before both
    assert mixed_with(unseen, known, "key") == "weight"
    assert mixed_with(np.where(key > 0, 2.0, 0.0), known, "key") == ""  # nothing is left
