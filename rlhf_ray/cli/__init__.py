"""The command line, `rlhf-ray COMMAND`: see `COMMANDS`."""

from __future__ import annotations

import codecs
import difflib
import importlib
import io
import os
import sys
import threading
import traceback
import warnings
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
    "convert": "convert:run",
    "fit": "fit:run",
    "label": "label:run",
    "links": "links:run",
    "pause": "pause:run",
    "interpret": "interpret:run",
    "tune": "tune:run",
    "store": "store:run",
    "submit": "cluster:submit",
    "ps": "cluster:ps",
    "stop": "cluster:stop",
    "doctor": "doctor:run",
}
"""``module:function`` of each command in this package; the function takes the remaining arguments."""

USAGE = """usage: rlhf-ray COMMAND …

  rlhf-ray train PRESET [--SETTING VALUE …]   learn a reward from comparisons and train an agent on it
  rlhf-ray train --resume RUN                 resume a stopped or killed run
  rlhf-ray evaluate RUN [--episodes N]        measure the true return of a run's saved policy
  rlhf-ray record RUN --out FILE              record episodes of a run's saved policy
  rlhf-ray convert SOURCE OUT [--to FORMAT]   convert recorded episodes: ours, imitation's, Minari's
  rlhf-ray label SOURCE --store STORE         collect comparisons from people, without training
  rlhf-ray links RUN [--revoke NAME]          show, renew or revoke the annotators' links to a labelling page
  rlhf-ray pause RUN [--end]                  stop asking questions for a while; the training goes on
  rlhf-ray fit STORE [--out FOLDER]           fit a reward model to stored labels
  rlhf-ray interpret reward RUN               report what a run's learned reward looks at
  rlhf-ray interpret agent RUN                report what a run's agent sees, remembers and uses
  rlhf-ray interpret preprocess PATH          turn a reward into an equivalent one that is easier to read
  rlhf-ray tune PRESET [--trials N …]         search over settings: the preset's search space, or --vary
  rlhf-ray tune --resume FOLDER               resume a stopped or killed sweep
  rlhf-ray submit -- COMMAND …                run one of these commands on a cluster
  rlhf-ray ps                                 list the runs on a cluster
  rlhf-ray stop RUN                           stop a run on a cluster, like Ctrl-C
  rlhf-ray store ACTION PATH …                inspect and manage a preference store; `rlhf-ray store` lists the actions
  rlhf-ray doctor [--address …]               check the installation, this machine and the Ray cluster

PRESET is one of {presets};
or an environment id, which uses the default settings; or a JSON file of settings (a run's config.json, a sweep's best.json).
If a file names an environment or a part as module:Name, allow it with --allow-import MODULE, because importing runs its code.
`rlhf-ray COMMAND --help` describes a command, `rlhf-ray train PRESET --help` every setting. With --debug (or RLHF_RAY_DEBUG=1),
every command shows full tracebacks."""


PLAIN = {"−": "-", "–": "-", "…": "...", "±": "+-", "×": "x"}


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a terminal lacks (it may not be in UTF-8)."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error("in_plain_characters", _in_plain_characters)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with code 2 on invalid settings and 1 on other failures, each with a one-line message."""
    # The networks are small: on few cores, several processes with several threads each are much slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="in_plain_characters")
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words  # arguments after -- belong to the submitted command
    if "--debug" in own:
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # pygame's, when an environment is drawn
    if not debugging():  # otherwise Ray prints tracebacks of errors that we report in one line
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout has closed the pipe (`| head`). Avoid Python's complaint when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stopped:
        print(f"rlhf-ray: {str(stopped) or 'interrupted'}", file=sys.stderr)
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
        nearest = difflib.get_close_matches(command, COMMANDS, n=1)
        meant = f"did you mean {nearest[0]}?" if nearest else f"give one of {', '.join(COMMANDS)}."
        raise SettingError(f"{command!r} is no command; {meant} `rlhf-ray --help` describes them.")
    if command in ("train", "tune") and (not rest or rest[0].startswith("-")) and rest[:1] != ["--resume"]:
        if rest[:1] in (["-h"], ["--help"]):
            print(usage)
            return
        given = f"{rest[0]} is given before a preset" if rest else f"{command} needs a preset"
        form = " ".join([command, "PRESET", *rest[:1]])
        raise SettingError(
            f"{given}; the preset, environment id or settings file comes first: `rlhf-ray {form} …`. Presets: "
            f"{', '.join(tune_configs.names())}."
        )
    if threading.current_thread() is threading.main_thread():
        sigterm_as_ctrl_c()
    module, _, function = COMMANDS[command].partition(":")
    with nothing_to_save():  # imports take a second or more
        from rlhf_ray.data import consent
        from rlhf_ray.data.modules import look_in

        action = getattr(importlib.import_module(f"rlhf_ray.cli.{module}"), function)
    look_in(Path.cwd())
    action(consent.take_flags(rest))
