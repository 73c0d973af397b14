"""`rlhf-ray label`: collect comparisons from people, without training."""

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
  a run folder               clips of its saved policy
  a preset, an environment   clips of random actions
  an .npz file               recorded steps, as written by `rlhf-ray record` (images only; needs --environment)
  a Minari data set          its recorded steps (images only; needs --environment)
  a preference store         its clips in new pairs (images only; needs --environment)

`rlhf-ray label SOURCE --help` describes every option."""


@dataclass(frozen=True)
class Label:
    """Collect comparisons from people at the labelling page. The page acknowledges only durable answers. Ctrl-C stops."""

    store: str
    """Folder or URL of the preference store, new or existing."""
    comparisons: int = 100
    """Number of comparisons in the store at which to stop."""
    environment: str | None = None
    """Environment of the clips. Needed for .npz files and preference stores only."""
    length: int | None = None
    """Environment steps per clip. None: as in the run or preset."""
    seed: int = 0
    """Random seed for clips and pairs."""
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
            raise SettingError(f"the environment of {source} is unknown; give it with --environment.")
        return preset(environment)
    return preset(source)
