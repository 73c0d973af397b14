"""`benchmarks/kernels.py` changes the arithmetic of every process that tests start, and records which tests that reaches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import arithmetics, cells

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = """
import subprocess, sys
if len(sys.argv) > 2:  # in a process of its own
    sys.exit(subprocess.call([sys.executable, __file__, sys.argv[1]]))
import numpy, torch
from rlhf_ray.optim import in_bfloat16
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork
from rlhf_ray.reward.networks import NETWORKS, make_network
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, VECTORS
from gymnasium.spaces import Box

torch.manual_seed(0)
frames = Box(0, 255, (44, 44, 1), numpy.uint8)
made = [
    make_network(seen, acts, RewardModelSettings(network=name, convolutions=(3,), hidden=(4,)))
    for seen, acts in ((VECTORS, FORCES), (frames, CHOICES))
    for name in sorted(set(NETWORKS.parts) - {"large_cnn", "very_large_cnn"})
    if ("cnn" in name or name in ("nature", "impala", "per_action")) <= (acts is CHOICES)
]
made += [ActorCriticNetwork(VECTORS, FORCES, PolicyShape(memory=memory)) for memory in ("none", "gru", "lstm")]
made += [ActorCriticNetwork(frames, CHOICES, PolicyShape(network=name)) for name in ("nature", "impala")]
made += [SoftActorCriticNetwork(VECTORS, FORCES, (4,), 0.1), torch.nn.TransformerEncoderLayer(8, 2)]
weights = [parameter.detach().numpy() for network in made for parameter in network.parameters()]
low = numpy.array(in_bfloat16("auto", torch.device("cpu")))
numpy.savez(sys.argv[1], *weights, auto=low)
"""


@pytest.mark.slow
def test_a_jitter_reaches_every_weight_that_is_drawn_in_each_process_by_a_millionth(tmp_path: Path) -> None:
    script = tmp_path / "weights.py"
    script.write_text(WEIGHTS)
    found = {}
    for jitter, precision, more in (
        ("", "float32", ()),
        ("1", "bfloat16", ("in a process of its own",)),
        ("2", "", ()),
    ):
        out = tmp_path / f"{jitter}{precision}.npz"
        environment = os.environ | {"JITTER": jitter, "PRECISION": precision, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "benchmarks/kernels.py", "own", str(script), str(out), *more]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        with np.load(out) as arrays:
            found[jitter, precision] = dict(arrays)
    assert [bool(of.pop("auto")) for of in found.values()][:2] == [False, True]
    own, one, two = found.values()
    assert len(own) > 50
    for name, weights in own.items():
        if len(np.unique(weights)) <= max(1, weights.size // 2):  # not drawn: one constant, or two
            np.testing.assert_array_equal(weights, one[name])
        else:
            np.testing.assert_allclose(one[name], weights, rtol=1.1e-6)
            assert (np.abs(one[name]) <= np.abs(weights)).all()
            assert (one[name] != two[name]).any()
            assert (one[name] != weights).any()


TESTS = """
import functools, os, subprocess, sys
import pytest, torch
from rlhf_ray.optim import in_bfloat16

@pytest.fixture(scope="module")
def network():
    return torch.nn.Linear(2, 2)

@functools.cache
def kept():
    return torch.nn.Linear(2, 2)

def test_keeps(): kept()
def test_keeps_too(): kept()
def test_takes(network): pass
def test_takes_too(network): pass
def test_nothing(): pass
def test_resolves(): in_bfloat16("auto", torch.device("cpu"))
def test_names(): in_bfloat16("bfloat16", torch.device("cpu"))
def test_both(network): in_bfloat16("auto", torch.device("cpu"))
def test_elsewhere(): subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)"])
def test_fails(): assert False, "this one"
def test_kernels(): assert os.environ["OPENBLAS_CORETYPE"] == "Nehalem"
"""


@pytest.mark.slow
def test_a_record_knows_in_which_tests_a_weight_is_drawn_or_a_precision_resolved(tmp_path: Path) -> None:
    (tmp_path / "test_made_up.py").write_text(TESTS)

    def run(**more: str) -> dict[str, dict[str, str | None]]:
        words = [sys.executable, "benchmarks/kernels.py", "sse", "-m", "pytest", "-p", "outcomes", "-n", "1"]
        more |= {"FIRED": "", "OUTCOMES": str(tmp_path / "out.json"), "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*words, str(tmp_path)], cwd=ROOT, env=os.environ | more, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        found = json.loads((tmp_path / "out.json").read_text())
        return {test.rpartition("::test_")[2]: outcome | {"id": test} for test, outcome in found.items()}

    found = run()
    fired = {test: outcome["fired"] for test, outcome in found.items()}
    assert fired == {
        **{"takes": "J", "takes_too": "J", "nothing": "", "resolves": "P", "names": "", "both": "JP", "elsewhere": "J"},
        **{"keeps": "J", "keeps_too": "J", "fails": "", "kernels": ""},
    }
    assert [test for test, outcome in found.items() if outcome["failed"]] == ["fails"]
    assert "this one" in str(found["fails"]["failed"])
    only = [found["takes"]["id"], found["both"]["id"]]
    (tmp_path / "only.json").write_text(json.dumps(only))
    assert run(ONLY=str(tmp_path / "only.json")).keys() == {"takes", "both"}


def test_the_matrix_runs_in_each_cell_what_it_can_change_goes_on_where_it_stopped_and_keeps_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = {"tests/a.py::weights": "J", "tests/a.py::both": "JP", "tests/b.py::precision": "P", "tests/b.py::none": ""}
    broken = {"jitter 2/float32": "tests/a.py::weights", "sse/bfloat16": "tests/b.py::precision"}
    runs: list[tuple[str, object, list[str]]] = []

    def run(cell: str, only: list[str] | None, files: list[str]) -> dict[str, dict[str, str | None]]:
        runs.append((cell, only, files))
        named = [test for test in fired if test in (only or fired) and (not files or test.partition("::")[0] in files)]
        return {test: {"fired": fired[test], "failed": "E" if broken.get(cell) == test else None} for test in named}

    def matrix(*words: str) -> dict[str, dict[str, Any]]:
        runs.clear()
        monkeypatch.setattr(sys, "argv", ["arithmetics.py", *words])
        arithmetics.main()
        return cells.kept(arithmetics.NAME)

    monkeypatch.setattr(cells, "RESULTS", tmp_path)
    monkeypatch.setattr(arithmetics, "REACHED", tmp_path / "reached.json")
    monkeypatch.setattr(arithmetics, "run", run)
    found = matrix()
    assert [cell for cell, *_ in runs] == arithmetics.CELLS
    named = {cell: only for cell, only, _ in runs}
    for cell, only in named.items():
        drawn, resolved = "jitter" in cell, "bfloat16" in cell
        wanted = [test for test, what in fired.items() if ("J" in what or not drawn) and ("P" in what or not resolved)]
        assert only == (wanted if drawn or resolved else None), cell
        assert found[cell]["tests"] == len(wanted)
        assert list(found[cell]["failed"]) == found[cell]["left"] == ([broken[cell]] if cell in broken else [])
    matrix()
    assert not runs
    del broken["sse/bfloat16"]
    mended = matrix("--failed")
    assert runs == [("jitter 2/float32", None, ["tests/a.py"]), ("sse/bfloat16", None, ["tests/b.py"])]
    assert mended["sse/bfloat16"]["left"] == []
    assert list(mended["sse/bfloat16"]["failed"]) == ["tests/b.py::precision"]
    assert mended["jitter 2/float32"]["left"] == ["tests/a.py::weights"]
    matrix("--anew", "--cells", "own/float32")
    assert [cell for cell, *_ in runs] == ["own/float32"]
