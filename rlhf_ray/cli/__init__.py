"""The command line, `rlhf-ray COMMAND`: see `COMMANDS`."""

from __future__ import annotations

import codecs
import importlib
import io
import os
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_ray import __version__, tune_configs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import DEBUG, cause, debugging, explain
from rlhf_ray.data.registry import did_you_mean
from rlhf_ray.data.system import TORCH_THREADS, torch_threads
from rlhf_ray.runs.interruption import leave, nothing_to_save, sigterm_as_ctrl_c

COMMANDS = {
    "train": "train:run",
    "evaluate": "evaluate:run",
    "compare": "compare:run",
    "record": "record:run",
    "convert": "convert:run",
    "fit": "fit:run",
    "label": "label:run",
    "links": "running:links",
    "pause": "running:pause",
    "interpret": "interpret:no_subject",
    "interpret reward": "interpret:reward",
    "interpret agent": "interpret:agent",
    "interpret preprocess": "interpret:preprocess",
    "tune": "tune:run",
    "store": "store:run",
    "submit": "cluster:submit",
    "doctor": "cluster:doctor",
}
"""``module:function`` of each command of one or two words in this package; the function takes the remaining arguments."""

DESCRIBED = {
    "train PRESET [--SETTING VALUE …]": "learn a reward from comparisons and train an agent on it",
    "train --resume RUN": "resume a stopped or killed run",
    "evaluate RUN [--episodes N]": "measure the true return of a run's saved policy",
    "compare RUN RUN …": "compare runs in one table and one picture",
    "record RUN --out FILE": "record episodes of a run's saved policy",
    "convert SOURCE OUT [--to FORMAT]": "convert recorded episodes: ours, imitation's, Minari's",
    "label SOURCE --store STORE": "collect comparisons from people, without training",
    "links RUN [--revoke NAME]": "show, renew or revoke the annotators' links to a labelling page",
    "pause RUN [--end]": "stop asking questions for a while; training continues",
    "fit STORE [--out FOLDER]": "fit a reward model to stored labels",
    "interpret reward RUN": "report what a run's learned reward looks at",
    "interpret agent RUN": "report what a run's agent sees, remembers and uses",
    "interpret preprocess PATH": "turn a reward into an equivalent one that is easier to read",
    "tune PRESET [--trials N …]": "search over settings: the preset's search space, or --vary",
    "tune --resume FOLDER": "resume a stopped or killed sweep",
    "submit -- COMMAND …": "run one of these commands on a cluster",
    "store ACTION PATH …": "inspect and manage a preference store; `rlhf-ray store` lists the actions",
    "doctor [--address …]": "check the installation, this machine and the Ray cluster",
}
FLAGS = (
    "`rlhf-ray COMMAND --help` explains a command and all its options, `rlhf-ray train PRESET --help` with the preset's values. "
    "With --debug (or RLHF_RAY_DEBUG=1), every command shows full tracebacks. If a file names an environment or a part as "
    "module:Name, allow it with --allow-import MODULE, because importing runs its code. To resume what somebody else made, allow "
    "its pickles with --allow-pickle FOLDER."
)

PLAIN = {"−": "-", "–": "-", "…": "...", "±": "+-", "×": "x"}


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a terminal lacks: a "?" in place of a minus would be another number."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error("in_plain_characters", _in_plain_characters)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with code 2 on invalid settings and 1 on other failures, each with a one-line message."""
    open_streams()
    if arguments is None:
        run_in_utf8()
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


def open_streams() -> None:
    """Open standard streams that are closed (``>&- 2>&-``) on /dev/null: nothing else gets their numbers, and what is printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, which is its own
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def run_in_utf8() -> None:
    """Run this program in Python's UTF-8 mode if the locale has another encoding (``LC_ALL=C``): no UTF-8 file takes names in it.

    The terminal's encoding stays.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(overview("rlhf-ray COMMAND …, rlhf-ray COMMAND --help, rlhf-ray --version", DESCRIBED, FLAGS))
        return
    if words[0] == "--version":
        print(f"rlhf-ray {__version__}")
        return
    if torch_threads() is None:
        # The networks are small: on few cores, several processes with several threads each are much slower.
        os.environ[TORCH_THREADS] = "1"
    command, rest = _command(words)
    if command in ("train", "tune"):
        _check_named(command, rest)
    if threading.current_thread() is threading.main_thread():
        sigterm_as_ctrl_c()
    module, _, function = COMMANDS[command].partition(":")
    with nothing_to_save():  # imports take a second or more
        from rlhf_ray.data import consent
        from rlhf_ray.data.modules import look_in

        action = getattr(importlib.import_module(f"rlhf_ray.cli.{module}"), function)
    look_in(Path.cwd())
    action(consent.take_flags(rest))


def overview(form: str, rows: Mapping[str, str], text: str) -> str:
    """Return the help of a command that has commands: its form, a row for each of them, and a text, in 80 columns."""
    indent = " " * 6
    lines = [
        f"  {name}\n{textwrap.fill(said, 80, initial_indent=indent, subsequent_indent=indent)}"
        for name, said in rows.items()
    ]
    return "\n\n".join([f"usage: {form}", "\n".join(lines), textwrap.fill(text, 80, break_on_hyphens=False)])


def _command(words: list[str]) -> tuple[str, list[str]]:
    """Return the command, of two words if there is one, and its arguments."""
    for count in (2, 1):
        if (command := " ".join(words[:count])) in COMMANDS:
            return command, words[count:]
    single = [command for command in COMMANDS if " " not in command]
    meant = did_you_mean(words[0], single) or f"give one of {', '.join(single)}."
    raise SettingError(f"{words[0]!r} is no command; {meant} `rlhf-ray --help` describes them.")


def _check_named(command: str, rest: list[str]) -> None:
    """Check that what to train on comes first."""
    if rest and (not rest[0].startswith("-") or rest[0] == "--resume" or {"-h", "--help"} & {*rest}):
        return
    given = f"{rest[0]} is given before a preset" if rest else f"{command} needs a preset"
    form = " ".join([command, "PRESET", *rest[:1]])
    raise SettingError(
        f"{given}; the preset, environment id or settings file comes first: `rlhf-ray {form} …`. Presets: "
        f"{', '.join(tune_configs.names())}."
    )
