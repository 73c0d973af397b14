"""Policies on disk do what their RLModule does; and nothing but resuming opens a foreign run's pickles."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray import cli
from rlhf_ray.agents.agent import MEMORY, Agent, NetworkAgent
from rlhf_ray.agents.saved import POLICY_FILE, WEIGHTS_FILE, SavedPolicy
from rlhf_ray.data import consent, signed
from rlhf_ray.data.checkpoints import add_manifest
from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.actions import best, to_env_actions
from rlhf_ray.rllib import PreferencePPO, checkpoint_parts
from rlhf_ray.rllib.agents import agent_of
from rlhf_ray.rllib.checkpoint_parts import POLICY, check_pickles, load_policy
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.rllib.policy import CollectorPolicy, built, policy_spec
from rlhf_ray.rllib.sac_module import SoftActorCritic, sac_spec
from rlhf_ray.rllib.starting import policy_weights
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interpret import steps_of_run
from rlhf_ray.runs.policies import named_agent, newest_policy
from rlhf_ray.settings import PPOSettings
from tests.command_line import fails_with
from tests.made_up import Planted
from tests.whole_runs import running

COMMANDS = (
    "evaluate RUN --episodes 1",
    "record RUN --out OUT.npz --episodes 1",
    "record RUN --out OUT --episodes 1 --inside",
    "label RUN --store OUT --comparisons 0 --labelling.port 0",
)
FUNCTIONS = {
    "train --policy-from": policy_weights,
    "interpret reward": lambda path: steps_of_run(RunFolder.open(path), 0),
    "interpret agent": lambda path: named_agent(path, None),
    "agent_of": agent_of,
}


@pytest.fixture
def run(trained_run, tmp_path, monkeypatch):
    """A run that this user has made. Nothing that a test trusts is trusted in the next one."""
    monkeypatch.setattr(signed, "_trusted", set())
    shutil.copytree(trained_run.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


@pytest.fixture
def planted(run, tmp_path):
    """A file that any pickle in the run's checkpoints writes when it is opened. The manifests know these pickles."""
    for checkpoint in run.checkpoints.iterdir():
        for file in (*checkpoint.rglob("*.pkl"), checkpoint / "dict_checkpoint.pkl"):
            file.write_bytes(pickle.dumps(Planted(tmp_path / "opened")))
        add_manifest(checkpoint, PREFERENCES)
    return tmp_path / "opened"


@pytest.mark.parametrize("what", [*COMMANDS, *FUNCTIONS])
def test_what_only_needs_the_policy_opens_no_pickle(what, run, planted, tmp_path):
    if what in FUNCTIONS:
        FUNCTIONS[what](run.path)
    else:
        cli.main(what.replace("RUN", str(run.path)).replace("OUT", str(tmp_path / "out")).split())
    assert not planted.exists()


def test_what_needs_pickles_asks_before_it_opens_them(run, planted, capsys):
    checkpoint = run.checkpoint()
    with running(preference_config(run.experiment()).build_algo()) as algorithm:
        for restore in (PreferencePPO.from_checkpoint, algorithm.restore_from_path, algorithm.restore):
            with pytest.raises(SettingError, match=f"{run.path} has pickles, .* add --allow-pickle {run.path} "):
                restore(str(checkpoint))
        with pytest.raises(SettingError, match="has pickles"):
            algorithm.restore_from_path(str(checkpoint / "learner_group"), component="learner_group")
    _extend(run)
    assert f"--allow-pickle {run.path}" in fails_with(capsys, "train", "--resume", run.path).splitlines()[-1]
    shutil.rmtree(checkpoint / POLICY)
    for load in (load_policy, agent_of, policy_weights):
        with pytest.raises(SettingError, match="has pickles"):
            load(checkpoint)
    assert not planted.exists()


def _extend(run: RunFolder) -> None:
    """Let there be something to resume."""
    about = json.loads(run.run.read_text())
    run.run.write_text(json.dumps(about | {"finished": None}))


def test_the_policy_is_the_one_in_the_pickle(run):
    checkpoint = run.checkpoint()
    kept = load_policy(checkpoint)
    shutil.rmtree(checkpoint / POLICY)
    signed.trust(checkpoint)
    pickled = load_policy(checkpoint)
    assert kept.maker().digest() == pickled.maker().digest()
    observations = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    np.testing.assert_array_equal(kept.best(observations), pickled.best(observations))


BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


class Own(DefaultPPOTorchRLModule):
    """A module of a user's own."""


@pytest.mark.parametrize(
    ("spec", "actions"),
    [
        (policy_spec(PPOSettings(hidden=(8,), memory="gru", memory_units=5)), gym.spaces.Discrete(3)),
        (policy_spec(PPOSettings(hidden=(8,), normalize_observations=True)), gym.spaces.MultiDiscrete([2, 3])),
        (sac_spec((8, 8), 0.5), BOX),
        (RLModuleSpec(DefaultPPOTorchRLModule, model_config=DefaultModelConfig(fcnet_hiddens=[8])), BOX),
        (RLModuleSpec(Own, model_config=DefaultModelConfig(fcnet_hiddens=[8])), BOX),
    ],
)
def test_each_kind_of_policy_acts_as_before_when_it_is_read_again(spec, actions, tmp_path, monkeypatch):
    module = built(spec, BOX, actions)
    checkpoint_parts._write(module, tmp_path / POLICY)
    if spec.module_class is Own:
        with monkeypatch.context() as another:
            another.setattr(consent, "_allowed", set())
            another.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
            with pytest.raises(SettingError, match=r"which imports the Python module 'tests\.rllib"):
                load_policy(tmp_path)
    again, before = load_policy(tmp_path), CollectorPolicy(module)
    assert type(again.module) is spec.module_class
    assert again.maker().digest() == before.maker().digest()
    observations = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    for _ in range(2):  # with memory, the second step depends on the first
        np.testing.assert_array_equal(again.best(observations), before.best(observations))


def test_what_json_can_not_say_stays_in_the_pickle(tmp_path):
    module = built(policy_spec(PPOSettings(hidden=(8,))), BOX, BOX)
    module.model_config = module.model_config | {"mine": (1, 2)}
    checkpoint_parts._write(module, tmp_path / POLICY)
    assert not (tmp_path / POLICY).exists()


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"format": "rlhf_ray.policy/2"}'])
def test_a_damaged_policy_is_named(damage, run):
    (run.checkpoint() / POLICY / "policy.json").write_bytes(damage)
    with pytest.raises(SettingError, match=str(run.path)):
        load_policy(run.checkpoints / "00000004")


def test_who_made_a_checkpoint_is_not_asked_and_another_user_once(run, tmp_path, monkeypatch):
    shutil.copytree(run.checkpoint(), tmp_path / "elsewhere" / "00000004")
    checkpoint = tmp_path / "elsewhere" / "00000004"
    check_pickles(checkpoint)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    with pytest.raises(SettingError, match=f"{checkpoint} has pickles"):
        check_pickles(checkpoint)
    assert consent.take_flags(["x", signed.FLAG, str(tmp_path / "elsewhere")]) == ["x"]
    check_pickles(checkpoint)
    monkeypatch.setattr(signed, "_trusted", set())  # as in a new process
    check_pickles(checkpoint)


VECTOR, IMAGE = gym.spaces.Box(-2.0, 2.0, (3,)), gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
DISCRETE, SEVERAL = gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([2, 3])
TWO_FORCES = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
POLICIES: dict[str, tuple[Any, Any, RLModuleSpec]] = {
    "discrete": (VECTOR, DISCRETE, policy_spec(PPOSettings(hidden=(8,)))),
    "box": (VECTOR, TWO_FORCES, policy_spec(PPOSettings(normalize_observations=True))),
    "several": (VECTOR, SEVERAL, policy_spec(PPOSettings())),
    "image": (IMAGE, DISCRETE, policy_spec(PPOSettings(network="small"))),
    "memory": (VECTOR, DISCRETE, policy_spec(PPOSettings(memory="gru", memory_units=8))),
    "sac": (
        VECTOR,
        TWO_FORCES,
        RLModuleSpec(module_class=SoftActorCritic, model_config={"hidden": [8], "initial_alpha": 0.1}),
    ),
}


def saved(name: str, folder: Path) -> tuple[CollectorPolicy, SavedPolicy]:
    """The policy as an RLModule, and what is read of its folder. Weights are large, so that memory and values matter."""
    observation_space, action_space, spec = POLICIES[name]
    torch.manual_seed(0)
    module = built(spec, observation_space, action_space)
    module.set_state({key: 2.0 * value for key, value in module.get_state().items()})
    checkpoint_parts._write(module, folder)
    found = SavedPolicy.load(folder)
    assert found is not None
    return CollectorPolicy(module), found


@pytest.mark.parametrize("name", POLICIES)
def test_it_acts_as_the_module_does(name: str, tmp_path: Path) -> None:
    theirs, found = saved(name, tmp_path / "policy")
    mine = found()
    space = POLICIES[name][0]
    space.seed(1)
    seen = np.stack([[space.sample() for _ in range(5)] for _ in range(4)])
    for step, observations in enumerate(seen):
        first = np.full(5, step == 0) | (np.arange(5) == step)  # episodes begin at different steps
        np.testing.assert_allclose(mine.best(observations, first), theirs.best(observations, first), atol=1e-5)
    mine, their = mine.begin(), theirs.begin()
    mine.see(seen[0, 0])
    their.see(seen[0, 0])
    if name in ("discrete", "memory", "image", "box"):  # RLlib draws other distributions with torch's generator
        for number, observation in enumerate(seen[1]):
            drawn = [each.act(observation, np.random.default_rng(number)) for each in (mine, their)]
            np.testing.assert_allclose(drawn[0], drawn[1], atol=1e-5)
    draw = found().drawn(0)
    drawn = np.stack([draw(seen[0], np.ones(5, bool)) for _ in range(400)])
    assert drawn.shape == (400, 5, *POLICIES[name][1].shape)
    again = mine.maker()()
    np.testing.assert_array_equal(again.best(seen[0]), found().best(seen[0]))
    assert mine.maker().digest() == theirs.maker().digest()


def test_damage_is_one_line_and_networks_of_others_are_left_to_rllib(tmp_path: Path) -> None:
    saved("discrete", tmp_path / "policy")
    file = tmp_path / "policy" / POLICY_FILE
    about = json.loads(file.read_text())
    for change, said in (({"format": "other/9"}, "update rlhf_ray"), ({"digest": "0" * 16}, "damaged")):
        file.write_text(json.dumps(about | change))
        with pytest.raises(SettingError, match=said):
            SavedPolicy.load(tmp_path / "policy")
    file.write_text(json.dumps(about | {"module": "somebody:Network"}))
    assert SavedPolicy.load(tmp_path / "policy") is None
    assert SavedPolicy.load(tmp_path / "nothing") is None
    file.write_text(json.dumps(about))
    (tmp_path / "policy" / WEIGHTS_FILE).write_bytes(b"nothing")
    with pytest.raises(SettingError, match="damaged"):
        SavedPolicy.load(tmp_path / "policy")


VECTORS = gym.spaces.Box(-1.0, 1.0, (3,))
ACTIONS = {"Discrete": gym.spaces.Discrete(3), "Box": gym.spaces.Box(-2.0, 2.0, (2,))}


def module(kind: str, actions: Any) -> Any:
    torch.manual_seed(1)
    spec = policy_spec(PPOSettings(hidden=(8,), memory=kind, memory_units=5))  # type: ignore[arg-type]
    made = built(spec, VECTORS, actions)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 1.5)
    return made


def actions_of(agent: Agent, observations: Any) -> Any:
    """The agent's best actions in a sequence of observations ``[steps, n, …]``."""
    memory, acted = agent.initial_memory(observations.shape[1]), []
    for seen in torch.as_tensor(observations):
        step = agent.step(seen, memory)
        memory = step.memory
        assert step.value.shape == (len(seen),)
        acted.append(to_env_actions(best(step.logits, agent.action_space).numpy(), agent.action_space))
    return np.stack(acted)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("kind", ["none", "gru", "lstm"])
def test_an_agent_does_what_its_policy_does(kind: str, actions: str) -> None:
    made = module(kind, ACTIONS[actions])
    policy, agent = CollectorPolicy(made), agent_of(made)
    observations = np.random.default_rng(0).uniform(-5, 5, (6, 4, 3)).astype(np.float32)
    expected = np.stack([policy.best(seen) for seen in observations])
    np.testing.assert_allclose(actions_of(agent, observations), expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(expected)) > 1
    # Differentiable in observations and memory; edits and layers; the same again untrained; the policy is still trainable.
    seen = torch.as_tensor(observations[0]).requires_grad_()
    memory = agent.initial_memory(4).clone().requires_grad_()
    step = agent.step(seen, memory, keep=agent.layers[:1])
    assert step.activations[agent.layers[0]] is not None
    (step.value.sum() + step.memory.sum()).backward()  # type: ignore[no-untyped-call]
    assert seen.grad.abs().sum() > 0
    if agent.memory_size:
        assert memory.grad.abs().sum() > 0
        assert torch.equal(agent.step(seen, memory, edits={MEMORY: torch.zeros_like}).memory, torch.zeros_like(memory))
    fresh = agent.fresh(3)
    assert fresh.digest != agent.digest == agent_of(policy).digest
    assert fresh.digest == agent.fresh(3).digest  # type: ignore[union-attr]
    assert all(parameter.requires_grad for parameter in made.parameters())


def test_a_module_without_a_network_of_ours_is_refused() -> None:
    spec = RLModuleSpec(module_class=DefaultPPOTorchRLModule, model_config=DefaultModelConfig(fcnet_hiddens=[8]))
    with pytest.raises(SettingError, match=r"is a DefaultPPOTorchRLModule; .*agent=ppo"):
        agent_of(built(spec, VECTORS, ACTIONS["Box"]))


def test_the_agent_of_a_run_is_that_of_its_newest_checkpoint(trained_run, tmp_path, monkeypatch):
    policy, _ = newest_policy(trained_run)
    agent = agent_of(trained_run.path)
    assert isinstance(agent, NetworkAgent)
    observations = np.random.default_rng(0).uniform(-1, 1, (1, 50, 3)).astype(np.float32)
    np.testing.assert_allclose(actions_of(agent, observations)[0], policy.best(observations[0]), rtol=1e-5, atol=1e-6)
    agent.save(tmp_path / "agent")
    assert agent_of(tmp_path / "agent").digest == agent.digest
    with pytest.raises(SettingError, match="has no policy; give a run folder, a checkpoint"):
        agent_of(tmp_path)
    checkpoint = trained_run.checkpoint()
    found, environment, run = named_agent(checkpoint, None)  # as the commands name it
    assert (found.digest, environment) == (agent.digest, trained_run.experiment().environment)
    assert (run.path, run.checkpoint()) == (trained_run.path, checkpoint)
    copied = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    assert named_agent(copied, environment)[0].digest == agent.digest
    with pytest.raises(SettingError, match="name its environment with --environment"):
        named_agent(copied, None)
    for folder in (trained_run.path, checkpoint, tmp_path / "agent"):
        monkeypatch.chdir(folder.parent)
        assert agent_of(folder.name).digest == agent.digest  # as the tutorial names it: agent_of("runs/cuerun")
