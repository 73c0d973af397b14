"""`rlhf-ray label`: collect comparisons from people or a scripted teacher, without training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments, spelled_out
from rlhf_ray.cli.presets import preset
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import pairs_skipped
from rlhf_ray.labelling.sessions import invitation
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings


@dataclass(frozen=True)
class Label:
    """Collect comparisons from people, at a page that acknowledges only durable answers, or from a scripted teacher."""

    source: tyro.conf.Positional[str]
    """Where the clips come from. A run folder: its saved policy. A preset or an environment: random actions. An .npz file of
    `rlhf-ray record`, a Minari data set or a preference store: their own, of images, with --environment. With --teacher oracle (or
    another scripted one): recorded steps with true rewards of any kind, without an environment; an .npz file, a folder that
    `rlhf-ray record` or imitation wrote, or a preference store."""
    store: str
    """Folder or URL of the preference store, new or existing."""
    comparisons: int = 100
    """Number of comparisons in the store at which to stop."""
    teacher: str = "human"
    """Who answers: human, or a scripted teacher (see --preferences.teacher), for recorded steps only."""
    environment: str | None = None
    """Environment of the clips. Needed for .npz files and preference stores only, and not with a scripted teacher."""
    length: int | None = None
    """Environment steps per clip. None: as in the run or preset."""
    seed: int = 0
    """Random seed for clips and pairs."""
    labelling: LabellingSettings = field(default_factory=LabellingSettings)
    fragments: FragmentSettings = field(default_factory=FragmentSettings)
    """With a scripted teacher: the clips to cut from recorded steps."""
    preferences: PreferenceSettings = field(default_factory=PreferenceSettings)
    """With a scripted teacher: its parameters, the selection and the rounds. --comparisons and --teacher replace those here."""
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)
    """With a scripted teacher: the reward model that selections use."""


def run(words: list[str]) -> None:
    """Run the command."""
    given = spelled_out(words, "--teacher", "--preferences.teacher")
    command = parse_arguments(Label, "rlhf-ray label", given)
    _tell_stored(command)
    for teacher in (command.teacher, command.preferences.teacher):
        if "machine" in teacher.split("+"):
            raise SettingError(f"--teacher is {teacher!r}, who answers while an agent trains: use rlhf-ray train.")
    if command.teacher != "human":
        _scripted(command)
        return
    from rlhf_ray.runs.label import label
    from rlhf_ray.runs.progress import Labelled
    from rlhf_ray.runs.quiet import quiet

    quiet()
    with Labelled(command.store, command.comparisons) as labelled:
        held = label(
            command.source,
            command.store,
            comparisons=command.comparisons,
            experiment=_experiment(command.source, command.environment),
            length=command.length,
            seed=command.seed,
            labelling=command.labelling,
            invite=lambda links: print(*invitation(links, command.store), sep="\n", flush=True),
            on_wait=labelled.on_wait,
            on_end=labelled.on_end,
        )
    print(f"{command.store}: {held} comparisons")


def _tell_stored(command: Label) -> None:
    """Say how many comparisons the store already has, which count towards those asked for."""
    from rlhf_ray.store.files import open_files, store_of
    from rlhf_ray.store.store import PreferenceStore

    place = store_of(command.store)
    try:
        stored = len(PreferenceStore(place, create=False)) if open_files(place).exists("store.json") else 0
    except ValueError as error:
        raise SettingError(str(error)) from error
    if stored:
        missing = max(0, command.comparisons - stored)
        more = f"asking for {missing} more" if missing else "nothing more is asked"
        print(f"{command.store}: {stored} stored comparisons count towards --comparisons={command.comparisons}; {more}")


def _scripted(command: Label) -> None:
    path = Path(command.source)
    if not path.exists() or (path / "config.json").exists():
        raise SettingError(
            f"--teacher is {command.teacher!r}, which labels recorded steps, but {path} is none: record some first (rlhf-ray "
            "record), or train with this teacher (rlhf-ray train)."
        )
    preferences = dataclasses.replace(command.preferences, teacher=command.teacher, comparisons=command.comparisons)
    fragments = command.fragments
    if command.length is not None:
        fragments = dataclasses.replace(fragments, length=command.length)
    from rlhf_ray.queries.offline import label_recorded, load_recorded
    from rlhf_ray.store.files import store_of

    found = load_recorded(path, fragments, command.seed)
    tally = label_recorded(found, store_of(command.store), preferences, command.reward_model, seed=command.seed)
    skipped = f", {pairs_skipped(tally.skipped)}" if tally.skipped else ""
    print(f"{command.store}: {tally.comparisons} comparisons of {len(found)} clips of {found.length} steps{skipped}")
    if tally.comparisons + (tally.skipped if preferences.skips_count else 0) < command.comparisons:
        print(
            f"No more pairs to ask, or the teacher skipped nearly all: {command.comparisons} comparisons were asked for."
        )


def _experiment(source: str, environment: str | None) -> Experiment:
    path = Path(source)
    if (path / "config.json").exists():
        return RunFolder.open(path).experiment()
    if path.exists():
        if environment is None:
            raise SettingError(f"the environment of {source} is unknown; give it with --environment.")
        return preset(environment)
    return preset(source)
