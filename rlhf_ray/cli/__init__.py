"""The command line: `rlhf-ray train | evaluate | record | label | links | fit | tune | submit | ps | stop | store | doctor`."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from rlhf_ray import tune_configs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import DEBUG, cause, debugging, explain
from rlhf_ray.runs.interruption import leave, nothing_to_save, sigterm_as_ctrl_c

COMMANDS = {
    "train": "train:run",
    "evaluate": "evaluate:run",
    "record": "record:run",
    "fit": "fit:run",
    "label": "label:run",
    "links": "links:run",
    "tune": "tune:run",
    "store": "store:run",
    "submit": "cluster:submit",
    "ps": "cluster:ps",
    "stop": "cluster:stop",
    "doctor": "doctor:run",
}
"""Each command's module in this package, and the function in it that takes the words of the command line."""

USAGE = """usage: rlhf-ray COMMAND …

  rlhf-ray train PRESET [--SETTING VALUE …]   learn a reward from comparisons and train an agent on it
  rlhf-ray train --resume RUN                 go on with a run that was stopped or killed
  rlhf-ray evaluate RUN [--episodes N]        measure a run's saved policy on the true reward
  rlhf-ray record RUN --out FILE              write down what a run's saved policy does
  rlhf-ray label SOURCE --store STORE         have people compare clips, without training
  rlhf-ray links RUN [--revoke NAME]          show people's links to a labelling page, make new ones, shut somebody out
  rlhf-ray fit STORE [--out FOLDER]           fit a reward model to stored labels
  rlhf-ray tune PRESET [--trials N …]         try different settings: the preset's search space, or what --vary names
  rlhf-ray tune --resume FOLDER               go on with a sweep that was stopped or killed
  rlhf-ray submit -- COMMAND …                run one of these in a cluster
  rlhf-ray ps                                 list the runs of a cluster
  rlhf-ray stop RUN                           stop a run of a cluster as Ctrl-C does
  rlhf-ray store ACTION PATH …                look after a preference store; `rlhf-ray store` lists the actions
  rlhf-ray doctor [--address …]               check the installation, this machine and the Ray cluster

PRESET is one of {presets}; or the name of an environment, which starts from the defaults; or a
JSON file of settings (a run's config.json, a sweep's best.json). An environment module:Id that a file names and you have
not typed before needs --allow-import MODULE, since importing it runs its code.
`rlhf-ray COMMAND --help` (and `rlhf-ray train PRESET --help`) explains every option. With --debug (or RLHF_RAY_DEBUG=1) every
command shows the whole trace of what goes wrong."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Wrong settings end it with code 2, other failures with 1, each with one line that says what to do."""
    # The networks are small: several processes with several threads each lose on few cores far more than they gain.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words  # what follows is the command of a job
    if "--debug" in own:
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    if not debugging():  # or Ray prints the trace of what is told in a line
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read what this prints has gone, as `head` does. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stopped:
        print(f"rlhf-ray: {str(stopped) or 'stopped at once'}", file=sys.stderr)
        if arguments is None:
            leave(130)
        sys.exit(130)
    except Exception as error:
        if debugging():
            traceback.print_exception(error)
        print(f"rlhf-ray: {explain(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(cause(error), SettingError) else 1)
    if arguments is None:
        leave(0)


def _run(words: list[str]) -> None:
    usage = USAGE.format(presets=", ".join(tune_configs.names()))
    if not words or words[0] in ("-h", "--help"):
        print(usage)
        return
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        sys.exit(f"rlhf-ray: there is no command {command!r}.\n{usage}")
    if command in ("train", "tune") and (not rest or rest[0].startswith("-")) and rest[:1] != ["--resume"]:
        print(usage)
        sys.exit(0 if rest and rest[0] in ("-h", "--help") else 2)
    if threading.current_thread() is threading.main_thread():
        sigterm_as_ctrl_c()
    module, _, function = COMMANDS[command].partition(":")
    with nothing_to_save():  # imports take a second or more
        from rlhf_ray.data import consent
        from rlhf_ray.data.modules import look_in

        action = getattr(importlib.import_module(f"rlhf_ray.cli.{module}"), function)
    look_in(Path.cwd())
    action(consent.take_flags(rest))
