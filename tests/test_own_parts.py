"""A user's own parts, as docs/your_own_parts.md has them: found from outside the package, alone and together."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlhf_ray.data import modules, registry
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings, from_json, to_json
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import TEACHERS, Answers
from tests.actors.rings import at, ring_in
from tests.made_up import FORCES, VECTORS, some_comparisons

DOCUMENT = Path(__file__).parent.parent / "docs" / "your_own_parts.md"
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
"""Those that begin with the name of the file that they go into."""
OWN = {
    "preferences.teacher": "my_parts:Hasty",
    "preferences.gatherer": "my_parts:InBatches",
    "preferences.selection": "my_parts:FarApart",
    "reward_model.network": "my_parts:Quadratic",
    "reward_model.loss": "my_parts:hinge",
    "reward_model.methods": "my_parts:Doubts",
    "preferences.schedule": "my_parts:early_and_late",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One that a user is in, with my_parts.py."""
    assert Counter(file for file, _ in BLOCKS) == {"my_parts.py": 12, "my_methods.py": 1, "my_env.py": 1}
    assert all(len(block.splitlines()) <= 40 for _, block in BLOCKS)
    for name in ("my_parts.py", "my_env.py"):
        (tmp_path / name).write_text("\n\n".join(block for file, block in BLOCKS if file == name))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(modules.FOLDERS, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_parts.py").write_text(WRONG)
    yield tmp_path
    for module in ("my_parts", "my_env", "wrong_parts"):
        sys.modules.pop(module, None)


def of(group: str, chosen: list[str]) -> dict[str, Any]:
    return {setting.partition(".")[2]: OWN[setting] for setting in chosen if setting.startswith(group)}


@pytest.mark.parametrize("chosen", [*([setting] for setting in OWN), list(OWN)], ids=[*OWN, "all"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_the_ring_turns_with_own_parts(folder: Path, chosen: list[str], mode: Any) -> None:
    preferences = PreferenceSettings(
        comparisons=30, initial_comparisons=20, rounds=2, mode=mode, **of("preferences", chosen)
    )
    settings = {"hidden": (8,), "batch_size": 4, "initial_updates": 10, "updates": 5, "ensemble_size": 2}
    reward_model = RewardModelSettings(**settings, **of("reward_model", chosen))
    check_parts(preferences, reward_model)
    with ring_in(folder, preferences, reward_model=reward_model) as ring:
        assert np.isfinite(ring.begin(200).fit.train_loss)
        annotators = set(PreferenceStore(folder / "store", create=False).load().annotators)  # type: ignore[union-attr]
        expected = {"preferences.gatherer": "my_service", "preferences.teacher": "hasty"}
        assert annotators == {next((name for setting, name in expected.items() if setting in chosen), "oracle")}
        assert ring.newest_reward()["version"] == 1
        if "reward_model.network" in chosen:
            assert "networks.networks.1.weight" in ring.newest_reward()


def test_a_network_of_all_members_learns(folder: Path) -> None:
    reward_model = RewardModelSettings(
        network="my_parts:SharedBody", batch_size=4, initial_updates=10, updates=5, ensemble_size=2
    )
    preferences = PreferenceSettings(comparisons=30, initial_comparisons=20, rounds=2)
    with ring_in(folder, preferences, reward_model=reward_model) as ring:
        assert np.isfinite(ring.begin(200).fit.train_loss)
        reward = ring.newest_reward()
        assert reward["networks.heads.weight"].shape == (2, 64)
        assert (reward["reward_std"] > 0).all()
    steps = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32), np.zeros((4, 3), np.float32), np.zeros(4, bool)
    assert RewardEnsemble(VECTORS, FORCES, reward_model).predict(*steps).shape == (4,)  # as PPO asks for it


def test_an_environment_of_ones_own_has_episodes_of_one_length(folder: Path) -> None:
    env = make_env("my_env:Walk-v0", render_mode="rgb_array")
    env.reset(seed=0)
    ends = [env.step(1)[2:4] for _ in range(100)]
    assert ends == [(False, False)] * 99 + [(False, True)]
    assert np.asarray(env.render()).shape == (64, 64, 3)
    gymnasium.registry.pop("Walk-v0")


def test_settings_with_own_parts_are_kept_by_name(folder: Path) -> None:
    settings = PreferenceSettings(teacher="my_parts:Hasty")
    assert from_json(PreferenceSettings, to_json(settings)) == settings
    check_parts(settings, RewardModelSettings())
    import my_parts

    assert PreferenceSettings(teacher=my_parts.Hasty).teacher == "my_parts:Hasty"


class Local:
    name = "local"

    def answer(self, pairs: Any, rng: Any) -> Any:
        return np.ones(len(pairs), np.float32)


def test_an_object_is_taken_along_to_the_process_that_reads_its_settings() -> None:
    import ray.cloudpickle  # as Ray sends settings

    instance = Local()
    settings = PreferenceSettings(teacher=instance)  # type: ignore[arg-type]
    kept = to_json(settings)
    again = from_json(PreferenceSettings, kept)
    sent = ray.cloudpickle.dumps(again)
    registry._given.clear()
    received = ray.cloudpickle.loads(sent)
    assert received == settings
    check_parts(received, RewardModelSettings())
    registry._given.clear()  # as in a later run
    with pytest.raises(SettingError, match=r"teacher is 'tests.*:Local\(…\)', an object of the program"):
        check_parts(from_json(PreferenceSettings, kept), RewardModelSettings())


WRONG = """
import numpy as np
import torch

from rlhf_ray.data.comparisons import Comparisons

class Mute:
    name = "mute"

class Rude:
    name = "rude"
    def answer(self, pairs, rng):
        return None

class Needy:
    name = "needy"
    def __init__(self, budget):
        ...
    def answer(self, pairs, rng):
        ...

class Mean(torch.nn.Module):
    def forward(self, observations, actions, next_observations, terminated):
        return observations.mean()

class NoModule:
    def forward(self, *steps):
        pass

def mean(return_difference, preferences, label_noise):
    return return_difference.mean()

def short(return_difference):
    return return_difference

class Scores:
    pass

class Deaf:
    name = "deaf"
    def answer(self, pairs):
        ...

class Sorts:
    needs_reward = False
    def score(self, candidates):
        ...

class Idle:
    def __init__(self, commit):
        ...

class Asks(Idle):
    def ask(self, pairs):
        ...

class Silent:
    def __init__(self, commit):
        self.commit = commit
    def ask(self, number, pairs):
        pass

class Breaks(Silent):
    def ask(self, number, pairs):
        if number:
            raise RuntimeError("quota exceeded")
        self.commit(Comparisons(pairs, np.ones(len(pairs), dtype=np.float32)))

class Detached(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
    def forward(self, observations, actions, next_observations, terminated):
        return super().forward(observations[:, :1])[:, 0].detach()

broken = 1 / 1
"""


@pytest.mark.parametrize(
    ("group", "name", "value", "message"),
    [
        (
            "preferences",
            "teacher",
            "psychic",
            r"one of oracle, .*human, machine, machine\+human, or module:Name",
        ),
        ("preferences", "teacher", "no_such_module:It", r"there is no module 'no_such_module'.*PYTHONPATH"),
        ("preferences", "teacher", "wrong_parts:It", r"wrong_parts.py has no It: correct the name"),
        ("preferences", "teacher", "wrong_parts:Mute", r"lacks answer: see rlhf_ray.teachers.teacher.Teacher"),
        ("preferences", "teacher", "wrong_parts:Needy", r"missing 1 required.*'budget'.*It may take settings"),
        ("preferences", "selection", "wrong_parts:Scores", r"lacks needs_reward, score: see rlhf_ray.queries.sel"),
        ("preferences", "gatherer", "wrong_parts:It", r"wrong_parts.py has no It: correct the name"),
        ("preferences", "teacher", "wrong_parts:Deaf", r"whose answer can't be called as answer\(pairs, rng\): see"),
        ("preferences", "selection", "wrong_parts:Sorts", r"whose score can't be called as score\(candidates, rng\)"),
        ("preferences", "gatherer", "wrong_parts:Idle", r"lacks ask: see rlhf_ray.queries.gatherers.Gatherer"),
        ("preferences", "gatherer", "wrong_parts:Asks", r"whose ask can't be called as ask\(number, pairs\)"),
        ("reward_model", "network", "wrong_parts:Detached", r"its rewards depend on no parameter"),
        ("reward_model", "network", "wrong_parts:Mean", r"2 fragments of 3 steps.*\(3, 2, 3\)|raised RuntimeError"),
        ("reward_model", "network", "wrong_parts:NoModule", r"must return a torch.nn.Module"),
        ("reward_model", "loss", "wrong_parts:mean", r"returned shape \(\): return one loss per difference, not their"),
        ("reward_model", "loss", "wrong_parts:short", r"called with \(return_difference, preferences, label_noise\)"),
    ],
)
def test_a_wrong_part_is_one_line_that_says_what_it_is_asked(
    folder: Path, group: str, name: str, value: str, message: str
) -> None:
    own: dict[str, Any] = {name: value}
    preferences = PreferenceSettings(**own if group == "preferences" else {})
    reward_model = RewardModelSettings(**own if group == "reward_model" else {})

    def try_them() -> None:
        check_parts(preferences, reward_model)
        make_network(VECTORS, FORCES, reward_model)

    with pytest.raises(SettingError, match=rf"(?s)^{group}\.{name} is '{value}'.*{message}") as error:
        try_them()
    assert "\n" not in str(error.value)


SILENT = r"Silent returned from the first 20 pairs without an answer\. `ask` must"


@pytest.mark.parametrize(
    ("mode", "part", "said"),
    [
        ("synchronous", {"teacher": "wrong_parts:Rude"}, "teacher is 'rude', and for 20 pairs it answered None"),
        ("synchronous", {"gatherer": "wrong_parts:Silent"}, SILENT),
        ("asynchronous", {"gatherer": "wrong_parts:Silent"}, SILENT),
    ],
)
def test_an_answer_of_no_use_is_one_line(folder: Path, mode: Any, part: dict[str, Any], said: str) -> None:
    preferences = PreferenceSettings(comparisons=30, initial_comparisons=20, mode=mode, **part)
    with ring_in(folder, preferences) as ring, pytest.raises(SettingError, match=said):
        ring.begin(200)


def test_a_gatherer_that_fails_in_the_last_iteration_fails_the_run(folder: Path) -> None:
    of: dict[str, Any] = {"mode": "asynchronous", "gatherer": "wrong_parts:Breaks"}
    with ring_in(folder, PreferenceSettings(comparisons=30, initial_comparisons=20, **of)) as ring:
        ring.begin(200)
        ring.advance(at(1.0, 1000))
        with contextlib.suppress(RuntimeError):
            ring.settle()
        with pytest.raises(RuntimeError, match="quota exceeded"):
            ring.check()


def test_a_network_of_whole_fragments_is_asked_for_all_members_at_once() -> None:
    class Recurrent(torch.nn.Module):
        reads_history = True

        def __init__(self, observation_space: Any, settings: RewardModelSettings):
            super().__init__()
            size = observation_space.shape[0]
            self.members = torch.nn.ModuleList(torch.nn.GRU(size, 1) for _ in range(settings.ensemble_size))

        def encode(self, observations: Any, actions: Any, terminated: Any) -> Any:
            return {"observations": observations}

        def forward(self, inputs: Any) -> Any:
            steps = inputs["observations"][:, :-1].transpose(0, 1)
            return torch.stack([member(steps)[0].squeeze(-1).T for member in self.members])

    settings = RewardModelSettings(network=Recurrent, ensemble_size=2)  # type: ignore[arg-type]
    network = make_network(VECTORS, FORCES, settings)
    frames, actions = torch.zeros(4, 6, 3), torch.zeros(4, 5, 2)
    assert network(network.encode(frames, actions, torch.zeros(4, dtype=torch.bool))).shape == (2, 4, 5)


def test_the_documented_network_with_history_and_the_one_around_another(folder: Path) -> None:
    running = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(network="my_parts:Running"))
    assert running.reads_history
    running.window.fill_(3)
    observations = torch.randn(9, 3)
    means = torch.stack([observations[max(0, t - 2) : t + 1].mean(0) for t in range(8)])
    expected = running.networks.heads(means).T.detach()
    torch.testing.assert_close(running.episode_rewards(observations, torch.zeros(8, 2), False), expected)
    squashed = RewardEnsemble(
        VECTORS, FORCES, RewardModelSettings(network="my_parts:Squashed", normalize_inputs="running")
    )
    assert not squashed.reads_history
    squashed.observe({"features": 100 * torch.randn(4, 2, 5)}, 2)
    assert float(squashed.networks.inner.normalise.variance.min()) > 100
    rewards = squashed.member_rewards(observations[1:], torch.randn(8, 2), observations[:-1], torch.zeros(8).bool())
    assert float(rewards.abs().max()) < 1


@pytest.mark.parametrize(
    ("name", "annotators"), [("tired_expert", {"expert"}), ("my_annotators", {"ada", "ben", "cleo"})]
)
def test_teachers_with_all_their_parameters_and_populations_answer(
    folder: Path, name: str, annotators: set[str]
) -> None:
    teacher = TEACHERS.make(f"my_parts:{name}", settings=PreferenceSettings())
    said = teacher.answer(some_comparisons(100).pairs, np.random.default_rng(0))
    found = set(said.annotators) if isinstance(said, Answers) else {teacher.name}
    assert found == annotators
