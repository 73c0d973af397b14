"""Parts of an algorithm's checkpoint besides RLlib's: the policy without pickles, and the signature of the pickles.

``policy/`` has the weights as safetensors and what they are weights of as JSON: the module's class, its ``model_config`` and its
spaces. It is all that acting, recording, evaluating and examining need. Only resuming opens RLlib's own files, which are pickles.
"""

from __future__ import annotations

import json
import operator
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rlhf_ray.agents.saved import FORMAT, POLICY_FILE, WEIGHTS_FILE
from rlhf_ray.data import consent, signed
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import import_module
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.rllib.policy import ActorCritic, CollectorPolicy, PolicyMaker
from rlhf_ray.rllib.rllib_internals import model_config_of, skip_notes
from rlhf_ray.rllib.sac_module import SoftActorCritic

POLICY = "policy"
"""Folder of the policy in a checkpoint."""

_BUILT_IN = {
    f"{kind.__module__}:{kind.__qualname__}": kind for kind in (ActorCritic, SoftActorCritic, DefaultPPOTorchRLModule)
}
"""Modules that a policy may have without asking."""

_CATALOGS = (None, PPOCatalog)
"""RLlib's catalogs of these modules. Only Python can set another."""


def complete(checkpoint: Path) -> None:
    """Add the policy to a checkpoint that RLlib has just written, and sign it. Call it last."""
    with torch.random.fork_rng(devices=[]):  # building a module draws weights
        module = _pickled(checkpoint)
    shutil.rmtree(checkpoint / POLICY, ignore_errors=True)  # an older checkpoint in this place may have one
    _write(module, checkpoint / POLICY)
    signed.sign(checkpoint, skip=(PREFERENCES,))


def check_pickles(checkpoint: Path) -> None:
    """Check that the pickles in a checkpoint, or in a part of one, are this user's own; see `rlhf_ray.data.signed.check`.

    Raises:
        SettingError: they are not, and the user has not allowed them.
    """
    run = checkpoint.absolute().parent.parent
    source = run if (run / "config.json").exists() else checkpoint
    signed.check(checkpoint, source, skip=(PREFERENCES,))


class OwnCheckpoints(Algorithm):  # type: ignore[misc]
    """A mixin to put before all others of an algorithm: completes its checkpoints, and opens only this user's pickles.

    Ray Tune restores what it has saved itself, maybe on another machine: that is not checked.
    """

    def save_to_path(self, path: Any = None, **arguments: Any) -> str:
        """Save a checkpoint; see `complete`."""
        saved: str = super().save_to_path(path, **arguments)
        complete(Path(saved).absolute())
        return saved

    @classmethod
    def from_checkpoint(cls, path: Any, *arguments: Any, **keywords: Any) -> Any:
        """Build an algorithm from a checkpoint.

        Raises:
            SettingError: its pickles are not known to be this user's own.
        """
        check_pickles(_path(path))
        return super().from_checkpoint(path, *arguments, **keywords)

    def restore(self, checkpoint_path: Any) -> None:
        if self._storage is None:
            check_pickles(_path(checkpoint_path))
        super().restore(checkpoint_path)

    def restore_from_path(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        """Restore a checkpoint.

        Raises:
            SettingError: its pickles are not known to be this user's own.
        """
        if self._storage is None:
            check_pickles(_path(path))
        super().restore_from_path(path, *arguments, **keywords)


def _path(checkpoint: Any) -> Path:
    """Return the path of a checkpoint: Ray's objects have one, too."""
    checkpoint = getattr(checkpoint, "checkpoint", checkpoint)
    return Path(getattr(checkpoint, "path", checkpoint))


def load_policy(checkpoint: Path) -> CollectorPolicy:
    """Load the policy from an algorithm's checkpoint. Needs no running Ray, and opens no pickle if it has one without.

    Checkpoints of earlier versions, of RLlib alone, and of modules that can't be described in JSON have none.

    Raises:
        SettingError: the policy is damaged; or it is in a pickle, or is code of a module, that the user has not allowed.
        ValueError: the folder is not a checkpoint with a policy.
    """
    if (checkpoint / POLICY / POLICY_FILE).exists():
        return _read(checkpoint / POLICY)()
    if not _module_folder(checkpoint).is_dir():
        raise ValueError(f"{checkpoint} is not a checkpoint with a policy.")
    check_pickles(checkpoint)
    return CollectorPolicy(_pickled(checkpoint))


def _module_folder(checkpoint: Path) -> Path:
    # RLlib takes a relative path for the address of another file system.
    return checkpoint.absolute().joinpath(
        COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
    )


def _pickled(checkpoint: Path) -> Any:
    skip_notes()
    return RLModule.from_checkpoint(_module_folder(checkpoint))


def _write(module: Any, folder: Path) -> None:
    """Write a policy, unless its class, catalog, model_config or spaces can only be pickled."""
    spec = RLModuleSpec.from_module(module)
    config = model_config_of(spec)
    kind = f"{type(module).__module__}:{type(module).__qualname__}"
    try:
        about = {
            "format": FORMAT,
            "module": kind,
            "model_config": config,
            "observation_space": space_to_json(module.observation_space),
            "action_space": space_to_json(module.action_space),
        }
        text = json.dumps(about, indent=2)
    except (TypeError, ValueError):
        return
    if json.loads(text)["model_config"] != config or spec.catalog_class not in _CATALOGS:
        return
    if not consent.OWN.fullmatch(kind) or kind.startswith("__main__"):
        return
    if kind not in _BUILT_IN:
        consent.allow(consent.module_of(kind))  # its code runs here already
    weights = {name: np.array(value, order="C") for name, value in module.get_state().items()}
    folder.mkdir()
    save_file(weights, folder / WEIGHTS_FILE)
    (folder / POLICY_FILE).write_text(f"{text}\n")


def _read(folder: Path) -> PolicyMaker:
    about_file = folder / POLICY_FILE
    try:
        about = json.loads(about_file.read_text())
        if about["format"] != FORMAT:
            raise SettingError(
                f"{about_file} has the format {about['format']!r}, unknown to this version: update rlhf_ray."
            )
        spaces = space_from_json(about["observation_space"]), space_from_json(about["action_space"])
        spec = RLModuleSpec(module_class=_module(about["module"], about_file), model_config=about["model_config"])
        return PolicyMaker(spec, *spaces, load_file(folder / WEIGHTS_FILE))
    except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
        raise SettingError(f"The policy in {folder} can't be read ({error}): it is damaged.") from error


def _module(name: str, source: Path) -> Any:
    """Return the class ``module:Name`` of a policy's module.

    Raises:
        SettingError: it is a user's own that was not allowed, or can't be imported.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    consent.check([name], source)
    module, _, attribute = name.partition(":")
    try:
        kind = operator.attrgetter(attribute)(import_module(module))
    except Exception as error:
        raise SettingError(f"{source} names the module {name!r}, but {error}.") from error
    if not (isinstance(kind, type) and issubclass(kind, RLModule)):
        raise SettingError(f"{source} names the module {name!r}, which is no RLModule.")
    return kind
