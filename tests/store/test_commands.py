"""`rlhf-ray store`: what it prints and how it ends."""

import itertools
import json
from pathlib import Path

import pytest

from rlhf_ray import cli
from rlhf_ray.store import Event, PreferenceStore
from tests.made_up import some_comparisons, some_fragments


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    store = PreferenceStore(tmp_path / "store")
    for seed in range(3):
        store.commit(some_comparisons(2, 2, seed=seed), annotator="oracle")
    return tmp_path / "store"


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """What the command prints; it has to end with this code."""
    try:
        cli.main(["store", *map(str, arguments)])
        ended: object = 0
    except SystemExit as end:
        ended = end.code
    printed = capsys.readouterr()
    assert ended == code, printed
    return printed.err + printed.out if code == 2 else printed.out


def test_info_counts_what_there_is(capsys, stored):
    about = json.loads(run(capsys, "info", stored, "--json"))
    assert (about["comparisons"], about["events"], about["clips"]) == (6, 6, 12)
    assert about["format"] == "rlhf_ray.preferences 1.3"
    assert about["annotators"] == {"oracle": 6}
    assert about["kinds"] == {"label": 6}
    assert about["files"] == {"labels": 3, "clips": 3, "quarantine": 0}
    assert about["bytes"]["clips"] > 0
    printed = run(capsys, "info", stored)
    for words in ("rlhf_ray.preferences 1.3", "6 oracle", "6 label", "3 files"):
        assert words in printed


def test_info_tells_what_people_chose_as_shown_and_how_far_they_agree(capsys, tmp_path):
    clips, store = some_fragments(8), PreferenceStore(tmp_path / "people")
    pairs = list(itertools.combinations(clips.ids(), 2))[:20]
    said = {"ada": [i % 2 == 0 for i in range(20)], "bob": [i % 2 == 0 for i in range(20)], "eve": [0.5] * 20}
    store.record(
        [
            Event(
                f"{name}{i}",
                "label",
                name,
                *pairs[i],
                float(preference),
                presented_swapped=name == "bob" and i % 2 == 0,
            )
            for name, answers in said.items()
            for i, preference in enumerate(answers)
        ],
        clips,
    )
    printed = run(capsys, "info", tmp_path / "people")
    assert "ada: 10 left, 10 right, 0 equal, as shown\n" in printed
    assert "bob: 0 left, 20 right, 0 equal, as shown (!) nearly always right, although sides are random" in printed
    assert "eve: 0 left, 0 right, 20 equal, as shown (!) nearly always equal" in printed
    store.weigh("eve", 0.0)
    printed = run(capsys, "info", tmp_path / "people")
    assert "Krippendorff's alpha 1.00 on 20 shared pairs (reliable; raw 1.00, by chance 0.49)" in printed
    about = json.loads(run(capsys, "info", tmp_path / "people", "--json"))
    assert about["chosen"]["bob"] == {"left": 0, "right": 20, "equal": 0}
    assert about["agreement"]["alpha"] == 1.0


def test_a_run_folder_stands_for_the_store_in_it(capsys, tmp_path, stored):
    (tmp_path / "run").mkdir()
    stored.rename(tmp_path / "run" / "preferences")
    assert "6 oracle" in run(capsys, "info", tmp_path / "run")


def test_verify_ends_with_1_and_names_what_is_wrong(capsys, stored):
    assert "sound; 6 comparisons, 6 events, 12 fragments" in run(capsys, "verify", stored)
    file = min((stored / "labels").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    assert file.name in run(capsys, "verify", stored, code=1)
    assert file.name in json.loads(run(capsys, "verify", stored, "--json", code=1))["problems"][0]


def test_compact_joins_the_files(capsys, stored):
    before = PreferenceStore(stored).snapshot().ids
    assert "3 -> 1 labels files, 3 -> 1 clips files" in run(capsys, "compact", stored)
    assert PreferenceStore(stored).snapshot().ids == before
    assert "1 -> 1 labels files" in run(capsys, "compact", stored)


def test_export_import_and_merge(capsys, tmp_path, stored):
    out = tmp_path / "out.parquet"
    assert "6 events" in run(capsys, "export", stored, out)
    out.write_bytes(b"precious")
    assert "already exists; give another file, or add --overwrite" in run(capsys, "export", stored, out, code=2)
    assert out.read_bytes() == b"precious"
    assert "6 events" in run(capsys, "export", stored, out, "--overwrite")
    assert "6 new comparisons" in run(capsys, "import", tmp_path / "imported", out)
    PreferenceStore(tmp_path / "more").commit(some_comparisons(1, 2, seed=9), annotator="oracle")
    printed = run(capsys, "merge", tmp_path / "merged", stored, tmp_path / "more", tmp_path / "imported")
    assert [line.split(": ")[1].split()[0] for line in printed.splitlines()] == ["6", "1", "0"]
    assert len(PreferenceStore(tmp_path / "merged")) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "nowhere"], "nowhere is not a preference store"),
        (["verify", "nowhere"], "nowhere is not a preference store"),
        (["merge", "new", "nowhere"], "nowhere is not a preference store"),
        (["import", "new", "nowhere.parquet"], "nowhere.parquet is not a file"),
        (["export", "store", "out.xls"], "out.xls must end in .parquet, .csv, .jsonl"),
        (["fly", "store"], "'fly' is no action of"),
        ([], "verify"),
    ],
)
def test_what_is_wrong_is_named_and_makes_nothing(capsys, monkeypatch, stored, arguments, words):
    monkeypatch.chdir(stored.parent)
    assert words in run(capsys, *arguments, code=2)
    assert [path.name for path in stored.parent.iterdir()] == ["store"]


def test_weigh_decides_what_an_annotators_answers_count(capsys, stored):
    assert "the 6 labels of oracle now have weight 0" in run(capsys, "weigh", stored, "oracle", "0")
    assert PreferenceStore(stored).weights() == {"oracle": 0.0}
    assert json.loads(run(capsys, "info", stored, "--json"))["weights"] == {"oracle": 0.0}
    assert "0.0 oracle" in run(capsys, "info", stored)
    assert "no annotator 'orcale'; it has oracle" in run(capsys, "weigh", stored, "orcale", "0", code=2)
    assert "must be a finite number, 0 (excluded) or more" in run(capsys, "weigh", stored, "oracle", "nan", code=2)
    assert PreferenceStore(stored).weights() == {"oracle": 0.0}
