"""All settings of an experiment, one file per group, with meaning, unit and default.

These classes define the command line, its help and the setters of `PreferencePPOConfig` and `PreferenceSACConfig`.
"""

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.agents import PolicyMemory, PPOSettings, SACSettings
from rlhf_ray.settings.experiment import (
    PARTS,
    AgentName,
    Experiment,
    env_steps_needed,
    from_json,
    load_experiment,
    own_parts,
    save_experiment,
    to_json,
)
from rlhf_ray.settings.fragments import FragmentSettings, ResolvedFragments
from rlhf_ray.settings.machine import MachineSettings
from rlhf_ray.settings.preferences import NO_QUESTIONS, LabellingSettings, PreferenceSettings
from rlhf_ray.settings.reward_model import (
    SUPERVISED_MODEL,
    Activation,
    InputNormalisation,
    Output,
    RewardModelSettings,
    SupervisedSettings,
)

__all__ = [
    "NO_QUESTIONS",
    "PARTS",
    "SUPERVISED_MODEL",
    "Activation",
    "AgentName",
    "Experiment",
    "FragmentSettings",
    "InputNormalisation",
    "LabellingSettings",
    "MachineSettings",
    "Output",
    "PPOSettings",
    "PolicyMemory",
    "PreferenceSettings",
    "ResolvedFragments",
    "RewardModelSettings",
    "SACSettings",
    "SettingError",
    "SupervisedSettings",
    "env_steps_needed",
    "from_json",
    "load_experiment",
    "own_parts",
    "save_experiment",
    "to_json",
]
