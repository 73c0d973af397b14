"""Each command that writes to a folder is refused while another one does; those that read are not."""

import shutil
from pathlib import Path

import pytest

from rlhf_ray import cli
from rlhf_ray.data.lock import Lock
from rlhf_ray.store import PreferenceStore
from tests.command_line import fails_with

WRITERS = {
    "train --resume RUN": "RUN",
    "train pendulum --run-dir NEW": "NEW",
    "tune pendulum --trials 1 --run-dir NEW": "NEW",
    "fit RUN --out NEW": "NEW",
    "fit --from-rewards DATA --out NEW": "NEW",
    "record RUN --out NEW": "NEW",
    "record RUN --out NEW.npz": "NEW.npz",
    "record RUN --out NEW --inside": "NEW",
    "convert DATA NEW": "NEW",
    "store export RUN NEW.csv": "NEW.csv",
    "interpret reward RUN": "RUN/interpret/reward",
    "interpret agent RUN --out NEW": "NEW",
    "interpret preprocess RUN --data DATA --out NEW": "NEW",
    "label DATA --store STORE --teacher oracle --length 10": "STORE",
}
READERS = (
    "evaluate RUN --episodes 1",
    "store info RUN",
    "fit RUN --out NEW --updates 1",
    "record RUN --out NEW.npz --episodes 1",
)


@pytest.fixture(scope="module")
def places(trained_run, tmp_path_factory):
    """Where things are: a copy of a run, a recording, a store, and a folder that doesn't exist."""
    folder = tmp_path_factory.mktemp("writers")
    shutil.copytree(trained_run.path, folder / "run")
    PreferenceStore(trained_run.preferences).copy_to(folder / "store")
    PreferenceStore(folder / "store")
    cli.main(["record", "Pendulum-v1", "--out", str(folder / "data.npz"), "--episodes", "1"])
    cli.main(["convert", str(folder / "data.npz"), str(folder / "data"), "--environment", "Pendulum-v1"])
    return {"RUN": folder / "run", "DATA": folder / "data", "STORE": folder / "store", "NEW": folder / "new"}


def words(command: str, places: dict[str, Path]) -> list[str]:
    """The command line with the places in it."""
    for name, place in places.items():
        command = command.replace(name, str(place))
    return command.split()


@pytest.mark.parametrize("command", WRITERS)
def test_a_second_writer_gets_one_line_and_changes_nothing(command, places, capsys):
    place = Path(words(WRITERS[command], places)[0])
    kept = sorted(places["RUN"].parent.rglob("*"))
    with Lock(place):
        last = fails_with(capsys, *words(command, places)).splitlines()[-1]
    assert last.startswith(f"rlhf-ray: {place} is being written by process ")
    assert sorted(places["RUN"].parent.rglob("*")) == kept


def test_readers_are_welcome(places):
    places = places | {"NEW": places["RUN"].parent / "read"}
    with Lock(places["RUN"]), Lock(places["STORE"]):
        for command in READERS:
            cli.main(words(command, places))
