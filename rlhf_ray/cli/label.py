"""`rlhf-ray label`: have people compare clips, without training."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import preset
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.links import invitation
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, LabellingSettings

USAGE = """usage: rlhf-ray label SOURCE --store STORE [--comparisons N] [--OPTION VALUE …]

SOURCE is where the clips come from:
  a run's folder            what its policy does
  a preset, an environment  what random actions do
  a .npz                    recorded steps, as `rlhf-ray record` writes them (images; --environment names theirs)
  a preference store        the clips in it, in new pairs (images; --environment names theirs)

`rlhf-ray label SOURCE --help` explains every option."""


@dataclass(frozen=True)
class Label:
    """Have people compare clips. Every answer is in the store, on the disk, before the page acknowledges it; Ctrl-C ends it."""

    store: str
    """Folder or URL of the preference store: a new one, or one to add to."""
    comparisons: int = 100
    """Comparisons that the store shall hold in the end."""
    environment: str | None = None
    """The environment that recorded clips are from. Other sources tell it."""
    length: int | None = None
    """Steps per clip; as the run or the preset has it unless given."""
    seed: int = 0
    """Seed of clips and pairs."""
    labelling: LabellingSettings = field(default_factory=LabellingSettings)


def run(words: list[str]) -> None:
    """Run the command."""
    if not words or words[0].startswith("-"):
        print(USAGE)
        sys.exit(0 if words and words[0] in ("-h", "--help") else 2)
    command = parse_arguments(Label, f"rlhf-ray label {words[0]}", words[1:])
    from rlhf_ray.runs.label import label
    from rlhf_ray.runs.train import quiet

    quiet()

    held = label(
        words[0],
        command.store,
        comparisons=command.comparisons,
        experiment=_experiment(words[0], command.environment),
        length=command.length,
        seed=command.seed,
        labelling=command.labelling,
        invite=lambda links: print(*invitation(links, command.store), sep="\n", flush=True),
    )
    print(f"{command.store}: {held} comparisons")


def _experiment(source: str, environment: str | None) -> Experiment:
    path = Path(source)
    if (path / "config.json").exists():
        return RunFolder.open(path).experiment()
    if path.exists():
        if environment is None:
            raise SettingError(f"{source} does not tell which environment it is of: name it with --environment.")
        return preset(environment)
    return preset(source)
