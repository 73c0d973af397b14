"""Collect labels without training, for clips of a policy, of random actions, or recorded ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.other_formats import minari_data
from rlhf_ray.data.recordings import load_demonstrations
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.labelling.collect import collect
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.waiting import PeopleWait
from rlhf_ray.queries.offline import cut, load_recorded
from rlhf_ray.queries.pool import CutFragments, FragmentPool
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.policies import newest_policy
from rlhf_ray.settings import Experiment, LabellingSettings

MORE_FRAGMENTS = 30
"""Number of clips to make if fewer gave no pair. Also the minimum for image observations, which need no rendering."""


def label(
    source: str,
    store: Path | str,
    *,
    comparisons: int,
    experiment: Experiment,
    length: int | None = None,
    seed: int = 0,
    labelling: LabellingSettings | None = None,
    invite: Callable[[dict[str, str]], None] = lambda links: print(*links.values(), sep="\n"),
    stop: Callable[[], bool] = lambda: False,
    on_wait: Callable[[PeopleWait], None] = lambda wait: None,
    on_end: Callable[[int], None] = lambda pages: None,
) -> int:
    """Collect comparisons of clips from ``source`` until ``store`` holds ``comparisons`` of them.

    Args:
        source: a run folder, an environment id, a file of recorded steps or a Minari data set, or a preference store.
        store: folder or URL of the preference store, new or existing.
        comparisons: number of comparisons in the store at which to stop.
        experiment: the environment, the fragment settings, and the instructions unless ``labelling`` has its own.
        length: environment steps per clip; None: the experiment's.
        seed: random seed for clips and pairs.
        labelling: settings of the page.
        invite: called with each annotator's link, by name.
        stop: polled; True stops earlier.
        on_wait: called about once a second with the progress.
        on_end: called with the number of open pages that are told at the end that labelling is over.

    Returns:
        Number of comparisons in the store.

    Raises:
        SettingError: ``source`` has no clips that can be shown to people.
    """
    config = preference_config(experiment)
    config.fragments(random_action_share=0.0)
    if length is not None:
        config.fragments(length=length)
    clips = _Clips(source, config, seed)
    labelling = labelling or LabellingSettings()
    if labelling.instructions == LabellingSettings.instructions:
        labelling = dataclasses.replace(labelling, instructions=experiment.labelling.instructions)
    return collect(
        clips.propose,
        store,
        labelling,
        comparisons=comparisons,
        fps=clips.fps,
        title=experiment.environment,
        film_episode=clips.film_episode,
        invite=invite,
        stop=stop,
        on_wait=on_wait,
        on_end=on_end,
    )


class _Clips:
    """Source of clips, and of pairs of them."""

    def __init__(self, source: str, config: PreferenceConfig, seed: int):
        checked = config.check_environment()
        self.spaces = (checked.observation_space, checked.action_space)
        self.settings, self.seed = checked.fragments, seed
        self.images = is_image(self.spaces[0])
        of = checked.experiment
        self.pool = FragmentPool(self.settings, of.preferences, of.reward_model, *self.spaces, seed)
        self.films: list[Film] = []
        """Films not passed to the page yet."""
        env = config.make_env(film=True)
        self.fps = tried_fps("", env)
        self.collector: RolloutCollector | None = None
        self.maker: Callable[[], Any] | None = None
        self.version = RANDOM_POLICY
        path = Path(source)
        if path.is_file() or minari_data(path) is not None or (path / "store.json").exists():
            self._take_recorded(path)
            return
        if (path / "config.json").exists():
            policy, self.version = newest_policy(RunFolder(path))
            self.maker = lambda: policy
        self.collector = RolloutCollector(env, self.settings, seed)

    def propose(self, count: int, number: int) -> tuple[Pairs, list[Film]] | None:
        """At most ``count`` pairs for round ``number``, and the films made since the last call; None when there are no more."""
        for wanted in (math.ceil(1.5 * count), MORE_FRAGMENTS):  # an episode can end before a clip is complete
            self._make(wanted, number)
            if pairs := self.pool.propose(count, number, None)[1]:
                films, self.films = self.films, []
                return pairs, films
        return None

    def _make(self, wanted: int, number: int) -> None:
        """Make about ``wanted`` clips for round ``number``; does nothing for recorded clips."""
        if self.collector is None:
            return
        if self.images:
            steps = max(wanted, MORE_FRAGMENTS) * self.settings.length
            clips = self.collector.collect(steps, 1, number + 1, self.version, self.maker, most=2 * wanted)[1]
        else:
            clips = self._film(number + 1, wanted)[0]
        self.pool.add(dataclasses.replace(clips, source=number))

    def film_episode(self) -> Episode | None:
        """A film of an episode; None for recorded clips."""
        return None if self.collector is None else self._film(0, 2)[1]

    def _film(self, number: int, clips: int) -> tuple[CutFragments, Episode | None]:
        assert self.collector is not None
        steps = max(self.settings.filmed_env_steps, clips * (self.settings.length + 1))
        _, made, films, shown = self.collector.film(
            steps, clips, number, 0, self.version, self.maker, episode=number == 0
        )
        self.films += films
        return made, shown

    def _take_recorded(self, path: Path) -> None:
        if not self.images:
            raise SettingError(
                f"{path} can't be shown to people, because its observations are not images. Label clips of a policy instead "
                "(rlhf-ray label RUN …), which are rendered."
            )
        fragments: Fragments | None
        if (path / "store.json").exists():
            fragments = load_recorded(path)
        else:
            whole = load_demonstrations(path).checked(*self.spaces, str(path)).trajectories()
            fragments = cut(whole, self.settings, self.seed)
        if fragments is None or len(fragments) < 2:
            raise SettingError(
                f"{path} has fewer than two clips of {self.settings.length} steps; set a smaller --length."
            )
        self.pool.add(CutFragments(-1, RANDOM_POLICY, fragments, ()))
