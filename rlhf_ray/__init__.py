"""Deep reinforcement learning from human preferences, distributed on Ray.

``import rlhf_ray as rr`` opens everything public: the names of ``__all__``, each imported at its first use. All else may change
without notice. docs/reference/public.md lists them.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlhf_ray.agents.agent import Agent, NetworkAgent
    from rlhf_ray.agents.own import FunctionAgent
    from rlhf_ray.agents.play import play
    from rlhf_ray.agents.recorded import Windows, load_episodes, record_inside
    from rlhf_ray.agents.true_return import TrueReturn
    from rlhf_ray.api import LearnedRun as Run
    from rlhf_ray.api import evaluate, explain, learn, names, preset
    from rlhf_ray.data.comparisons import Comparisons, Pairs
    from rlhf_ray.data.errors import SettingError
    from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
    from rlhf_ray.data.recordings import load_transitions
    from rlhf_ray.data.rollout import rollout
    from rlhf_ray.data.transitions import Transitions
    from rlhf_ray.envs.batches import make_batch
    from rlhf_ray.envs.fixed_horizon import FixedHorizon
    from rlhf_ray.envs.ground_truth import ground_truth as true_reward
    from rlhf_ray.envs.registry import make_env
    from rlhf_ray.interpret.attribution import Method
    from rlhf_ray.queries.fitting import fit
    from rlhf_ray.queries.gatherers import Gatherer
    from rlhf_ray.queries.selection import Candidates, Disagreement, Selection
    from rlhf_ray.reward import RewardEnsemble
    from rlhf_ray.reward.functions import CallableReward
    from rlhf_ray.reward.functions import RewardFunction as Reward
    from rlhf_ray.reward.functions.reward_net import LearnedRewardNet
    from rlhf_ray.reward.methods import FitMethod
    from rlhf_ray.reward.networks import RewardNetwork, StepNetwork, make_network
    from rlhf_ray.reward.sampled_distances import all_distances as distances
    from rlhf_ray.reward.sampled_distances import dard, epic, starc
    from rlhf_ray.reward.supervised import fit_to_rewards
    from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig, PreferenceSAC, PreferenceSACConfig
    from rlhf_ray.runs.callbacks import Callback
    from rlhf_ray.runs.new_run import new_run
    from rlhf_ray.runs.train import train
    from rlhf_ray.settings import Experiment, FragmentSettings, LabellingSettings, SupervisedSettings
    from rlhf_ray.settings import PPOSettings as PPO  # noqa: N814
    from rlhf_ray.settings import PreferenceSettings as Preferences
    from rlhf_ray.settings import RewardModelSettings as RewardModel
    from rlhf_ray.settings import SACSettings as SAC  # noqa: N814
    from rlhf_ray.settings.start import Start
    from rlhf_ray.store import Event
    from rlhf_ray.store import PreferenceStore as Store
    from rlhf_ray.study import Section, Step, StepContext
    from rlhf_ray.teachers import Annotator, Answers, Oracle, Population, SimulatedTeacher, Stochastic, Teacher
    from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv, relabel_replay_buffer

_MODULES = {
    "agents.agent": "Agent NetworkAgent",
    "agents.own": "FunctionAgent",
    "agents.play": "play",
    "agents.recorded": "Windows load_episodes record_inside",
    "agents.true_return": "TrueReturn",
    "api": "Run=LearnedRun evaluate explain learn names preset",
    "data.comparisons": "Comparisons Pairs",
    "data.errors": "SettingError",
    "data.fragments": "Fragments Trajectory cut_fragments",
    "data.recordings": "load_transitions",
    "data.rollout": "rollout",
    "data.transitions": "Transitions",
    "envs.batches": "make_batch",
    "envs.fixed_horizon": "FixedHorizon",
    "envs.ground_truth": "true_reward=ground_truth",
    "envs.registry": "make_env",
    "interpret.attribution": "Method",
    "queries.fitting": "fit",
    "queries.gatherers": "Gatherer",
    "queries.selection": "Candidates Disagreement Selection",
    "reward": "RewardEnsemble",
    "reward.functions": "CallableReward Reward=RewardFunction",
    "reward.functions.reward_net": "LearnedRewardNet",
    "reward.methods": "FitMethod",
    "reward.networks": "RewardNetwork StepNetwork make_network",
    "reward.sampled_distances": "dard distances=all_distances epic starc",
    "reward.supervised": "fit_to_rewards",
    "rllib": "PreferencePPO PreferencePPOConfig PreferenceSAC PreferenceSACConfig",
    "runs.callbacks": "Callback",
    "runs.new_run": "new_run",
    "runs.train": "train",
    "settings": "Experiment FragmentSettings LabellingSettings PPO=PPOSettings Preferences=PreferenceSettings "
    "RewardModel=RewardModelSettings SAC=SACSettings SupervisedSettings",
    "settings.start": "Start",
    "store": "Event Store=PreferenceStore",
    "study": "Section Step StepContext",
    "teachers": "Annotator Answers Oracle Population SimulatedTeacher Stochastic Teacher",
    "wrappers": "HumanPreferencesEnv HumanPreferencesVectorEnv relabel_replay_buffer",
}
"""The public names by module, as ``NAME``, or ``NAME=NAME_THERE``; the imports above, for type checkers, say the same."""

_HOMES = {
    name.partition("=")[0]: (f"rlhf_ray.{module}", name.rpartition("=")[2])
    for module, names_there in _MODULES.items()
    for name in names_there.split()
}

__all__ = [
    "PPO",
    "SAC",
    "Agent",
    "Annotator",
    "Answers",
    "CallableReward",
    "Callback",
    "Candidates",
    "Comparisons",
    "Disagreement",
    "Event",
    "Experiment",
    "FitMethod",
    "FixedHorizon",
    "FragmentSettings",
    "Fragments",
    "FunctionAgent",
    "Gatherer",
    "HumanPreferencesEnv",
    "HumanPreferencesVectorEnv",
    "LabellingSettings",
    "LearnedRewardNet",
    "Method",
    "NetworkAgent",
    "Oracle",
    "Pairs",
    "Population",
    "PreferencePPO",
    "PreferencePPOConfig",
    "PreferenceSAC",
    "PreferenceSACConfig",
    "Preferences",
    "Reward",
    "RewardEnsemble",
    "RewardModel",
    "RewardNetwork",
    "Run",
    "Section",
    "Selection",
    "SettingError",
    "SimulatedTeacher",
    "Start",
    "Step",
    "StepContext",
    "StepNetwork",
    "Stochastic",
    "Store",
    "SupervisedSettings",
    "Teacher",
    "Trajectory",
    "Transitions",
    "TrueReturn",
    "Windows",
    "cut_fragments",
    "dard",
    "distances",
    "epic",
    "evaluate",
    "explain",
    "fit",
    "fit_to_rewards",
    "learn",
    "load_episodes",
    "load_transitions",
    "make_batch",
    "make_env",
    "make_network",
    "names",
    "new_run",
    "play",
    "preset",
    "record_inside",
    "relabel_replay_buffer",
    "rollout",
    "starc",
    "train",
    "true_reward",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOMES[name]
    value = getattr(importlib.import_module(module), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
