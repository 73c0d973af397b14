"""Load any reward by its path or name, without running code from files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlhf_ray.data import consent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.data.registry import Registry
from rlhf_ray.reward.ensemble import FORMAT, RewardEnsemble
from rlhf_ray.reward.functions.function import EnsembleReward, RewardFunction
from rlhf_ray.reward.functions.imitation import SUFFIXES, ImitationReward, check_size, load_imitation_net
from rlhf_ray.reward.functions.plain import CallableReward, TableReward
from rlhf_ray.reward.functions.shaped import FORMAT as SHAPED
from rlhf_ray.reward.functions.shaped import ShapedReward
from rlhf_ray.settings import RewardModelSettings, from_json, own_parts

MOST_JSON = 2**24
"""Largest description in bytes."""

FORMS = (
    "a run folder, a reward model's folder (reward.json), a table (.npz with the array table), a RewardNet that imitation saved "
    "(.pt), or module:Name of your own"
)


def load_reward(
    path_or_name: Path | str,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
) -> RewardFunction:
    """Load a reward function.

    Args:
        path_or_name: a run folder; a reward model's folder; a ``.npz`` with the array ``table`` (`TableReward`) and, for a table
            over states alone, the number ``actions``; a ``.pt`` or ``.pth`` with a whole ``RewardNet`` of `imitation`; or
            ``module:Name`` of your own: a `RewardFunction`, a ``RewardNet``, a function of observations, actions, next observations
            and terminated, or a class or function of at most ``observation_space`` and ``action_space`` that returns one of them.
        observation_space: the environment's, for a function of your own.
        action_space: the environment's, for a function of your own.

    Raises:
        SettingError: there is no such reward, it is damaged, or it would run code that the user did not name. One line.
    """
    name = str(path_or_name)
    path = run_path(name)
    if not path.exists() and consent.OWN.fullmatch(name):
        return _own(name, observation_space, action_space)
    if not path.exists():
        raise SettingError(f"There is no reward at {path}; give {FORMS}.")
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix in SUFFIXES:
            return _tried(ImitationReward(load_imitation_net(path), path.stem), str(path))
        if path.suffix == ".npz":
            return _table(path)
    except SettingError:
        raise
    except Exception as error:  # a damaged file raises almost anything
        raise SettingError(f"{path} can't be read as a reward ({_first_line(error)}): it is damaged.") from error
    raise SettingError(f"{path} is no reward; give {FORMS}.")


def _of_folder(folder: Path) -> RewardFunction:
    """Load the reward of a run, of `rlhf-ray interpret preprocess`, or of a reward model's folder."""
    of_run = (folder / "config.json").exists()
    inside = "reward_model" if of_run else "reward" if (folder / "certificate.json").exists() else ""
    model = folder / inside if inside and not (folder / "reward.json").exists() else folder
    file = model / "reward.json"
    if not file.exists():
        if not of_run:
            raise SettingError(f"{folder} is no reward; give {FORMS}.")
        run_file = folder / "run.json"
        if run_file.exists() and json.loads(run_file.read_text()).get("options", {}).get("true_reward"):
            raise SettingError(
                f"{folder} is a run on the true reward (--true-reward), which has no reward model; give a run that learned one."
            )
        raise SettingError(f"{folder} is a run folder without a reward model: the run has not fitted one yet.")
    if file.stat().st_size > MOST_JSON:
        raise SettingError(
            f"{file} has {file.stat().st_size / 2**20:.0f} MiB; a description has less than 16: it is damaged."
        )
    description = json.loads(file.read_text())
    if not isinstance(description, dict) or description.get("format") not in READERS:
        kind = description.get("format") if isinstance(description, dict) else type(description).__name__
        raise SettingError(f"{file} has format {kind!r}; this version reads {', '.join(map(repr, READERS))}.")
    if of_run and (folder / "run.json").exists() and description["format"] == FORMAT:
        found = json.loads((folder / "run.json").read_text()).get("modules")
        consent.check(own_parts("reward_model", from_json(RewardModelSettings, description["settings"])), file, found)
    return READERS[description["format"]](model, description)


def _ensemble(folder: Path, description: dict[str, Any]) -> RewardFunction:
    shapes = [description[name].get("shape", ()) for name in ("observation_space", "action_space")]
    if max(np.prod([float(size) for size in shape]) for shape in shapes) > MOST_JSON:
        raise SettingError(f"{folder / 'reward.json'} has spaces of the shapes {shapes}: it is damaged.")
    reward = EnsembleReward(RewardEnsemble.load(folder))
    if not all(bool(torch.isfinite(value).all()) for value in reward.module.state_dict().values()):
        raise SettingError(
            f"{folder / 'reward.safetensors'} has weights that are NaN or infinite; fit the reward model again."
        )
    return reward


READERS: dict[str, Callable[[Path, dict[str, Any]], RewardFunction]] = {
    FORMAT: _ensemble,
    SHAPED: lambda folder, description: ShapedReward.of_folder(folder, read=load_reward),
}
"""Reads a folder with a ``reward.json``, by the ``format`` it says; gets the folder and the content of ``reward.json``."""


def _table(path: Path) -> RewardFunction:
    check_size(path, "tables")
    with np.load(path, allow_pickle=False) as arrays:
        if "table" not in arrays:
            raise SettingError(
                f"{path} has no array table, but {', '.join(arrays) or 'none'}; save a reward table as table."
            )
        table = np.asarray(arrays["table"], np.float64)
        actions = int(arrays["actions"]) if "actions" in arrays else None
    if not table.size or not np.isfinite(table).all():
        raise SettingError(f"{path} has a table that is empty, or has NaN or infinite rewards; save another.")
    return TableReward(table, actions, path.stem)


OWN: Registry[Any] = Registry("reward", RewardFunction, {})


def _own(name: str, observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None) -> RewardFunction:
    """Import ``module:Name``, which the user typed, and make a reward function of it."""
    part = OWN.find(name)
    offered = {"observation_space": observation_space, "action_space": action_space}
    if _makes_a_reward(part):
        try:
            part = part(**{key: offered[key] for key in inspect.signature(part).parameters if key in offered})
        except Exception as error:
            raise SettingError(f"The reward {name} can't be made: {_first_line(error)}.") from error
    if isinstance(part, RewardEnsemble):
        part = EnsembleReward(part, name)
    elif isinstance(part, nn.Module) and hasattr(part, "predict_processed"):
        part = ImitationReward(part, name)
    elif not isinstance(part, RewardFunction) and callable(part):
        if observation_space is None or action_space is None:
            raise SettingError(f"The reward {name} is a function, so its spaces are unknown; name the environment too.")
        part = CallableReward(part, observation_space, action_space, name)
    if not isinstance(part, RewardFunction):
        raise SettingError(
            f"The reward {name} is {type(part).__name__}; it must be a RewardFunction, a RewardNet, or a function of observations, "
            "actions, next observations and terminated."
        )
    return part  # tried on the data's steps, not on zeros: it may have a domain


def _makes_a_reward(part: Any) -> bool:
    """Whether ``part`` is a class, or a function without parameters of its own, that returns the reward."""
    if inspect.isclass(part):
        return True
    if not inspect.isroutine(part):
        return False
    return set(inspect.signature(part).parameters) <= {"observation_space", "action_space"}


def _tried(reward: RewardFunction, what: str) -> RewardFunction:
    """Return ``reward`` after it answered for one step: a file of another version fails here, not in the middle of a report."""
    try:
        one = [
            np.zeros((1, *(space.shape or ())), space.dtype)
            for space in (reward.observation_space, reward.action_space)
        ]
        one[1] += np.asarray(getattr(reward.action_space, "start", 0), one[1].dtype)
        answer = reward.members(one[0], one[1], one[0], np.zeros(1, bool))
    except SettingError:
        raise
    except Exception as error:
        training = ", ".join(reward.training_layers())
        remedy = f" In training mode: {training}; call .eval() on the network." if training else ""
        raise SettingError(
            f"{what} does not work as a reward: for one step it raised {_first_line(error)}.{remedy}"
        ) from error
    if not np.isfinite(answer).all():
        raise SettingError(f"{what} does not work as a reward: for one step it returned {answer.ravel()[0]}.")
    return reward


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
