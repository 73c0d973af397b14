"""The one reader of a recording's splits: where a split is empty it reads all levels, and the step's section says so."""

from __future__ import annotations

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.recorded import Split, load_episodes
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.subject import AgentContext

EPISODES, FEWEST = 300, 20
"""Episodes that most steps read: at effort 1, and at least."""

NOT_HELD_OUT = (
    "No recorded level is held out: figures are of levels that something was fitted to. Record more episodes."
)


def recorded(context: AgentContext, split: Split = "train") -> Episodes:
    """Load recorded episodes of a split, fewer with less effort."""
    return split_episodes(context, split, max(FEWEST, round(EPISODES * min(1.0, context.subject.effort))))


def split_episodes(context: AgentContext, split: Split, most: int) -> Episodes:
    """Load at most ``most`` recorded episodes of a split; of all levels, with a warning, if it has none."""
    folder, agent = context.folders["recording"], context.subject.agent
    try:
        return load_episodes(folder, split=split, most=most, agent=agent)
    except SettingError:
        episodes = load_episodes(folder, most=most, agent=agent)  # raises if the fault is not the split
        context.warn(NOT_HELD_OUT)
        return episodes
