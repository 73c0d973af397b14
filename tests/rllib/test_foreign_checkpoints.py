"""A foreign run's pickles: nothing but resuming opens them, and that only if they are this user's own or were allowed."""

import json
import pickle
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray import cli
from rlhf_ray.data import consent, signed
from rlhf_ray.data.checkpoints import add_manifest
from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib import PreferencePPO, checkpoint_parts
from rlhf_ray.rllib.agents import agent_of
from rlhf_ray.rllib.checkpoint_parts import POLICY, check_pickles, load_policy
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.rllib.policy import CollectorPolicy, built, policy_spec
from rlhf_ray.rllib.sac_module import sac_spec
from rlhf_ray.rllib.starting import policy_weights
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interpret import steps_of_run
from rlhf_ray.runs.policies import named_agent
from rlhf_ray.settings import PPOSettings
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


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


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
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", str(run.path)])
    assert f"--allow-pickle {run.path}" in capsys.readouterr().err.splitlines()[-1]
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


BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)


class Own(DefaultPPOTorchRLModule):
    """A module of a user's own."""


@pytest.mark.parametrize(
    ("spec", "actions"),
    [
        (policy_spec(PPOSettings(hidden=(8,), memory="gru", memory_units=5)), gymnasium.spaces.Discrete(3)),
        (policy_spec(PPOSettings(hidden=(8,), normalize_observations=True)), gymnasium.spaces.MultiDiscrete([2, 3])),
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
