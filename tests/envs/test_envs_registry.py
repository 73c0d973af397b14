"""Environments by name: makers, vector environments, unknown names, identity, and the return that counts as learned."""

import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.envs.registration import WrapperSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import EnvCreator, is_natively_vectorised, make_env, make_vector_env, register, steps_together
from rlhf_ray.envs.checked import CheckedVectorEnv
from rlhf_ray.envs.registry import THRESHOLDS, identity_of, reward_threshold
from tests.command_line import run_python


def test_register_is_idempotent() -> None:
    before = dict(gymnasium.registry)
    register()
    assert dict(gymnasium.registry) == before
    assert "rlhf_ray/CartPoleFixed-v0" in before
    assert "rlhf_ray/MovingDot-v0" in before


def test_makes_gymnasium_ids_with_options() -> None:
    env = make_env("CartPole-v1", max_episode_steps=7)
    assert env.spec.max_episode_steps == 7
    assert make_env("gymnasium:CartPole-v1").observation_space.shape == (4,)


@pytest.mark.parametrize("name", ["CartPole-v1", "rlhf_ray/CartPoleFixed-v0", "rlhf_ray/MovingDot-v0"])
def test_vector_env_resets_on_the_next_step(name: str) -> None:
    envs = make_vector_env(name, 2, max_episode_steps=3)
    assert isinstance(envs, SyncVectorEnv) is (name == "rlhf_ray/MovingDot-v0")
    assert steps_together(name) is (name != "rlhf_ray/MovingDot-v0")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset(seed=0)
    actions = np.zeros(2, np.int64)
    assert envs.single_observation_space == make_env(name).observation_space
    ends = [bool(envs.step(actions)[3].all()) for _ in range(8)]
    assert ends == [False, False, True, False, False, False, True, False]
    envs.close()


SINGLE = "gymnasium.envs.classic_control:CartPoleEnv"


class Together(CartPoleVectorEnv):
    """A user's vector environment."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    reward: ClassVar[float] = 1.0

    def step(self, action: Any) -> Any:
        observations, rewards, *others = super().step(action)
        return observations, rewards * self.reward, *others


class Otherwise(Together):
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}


@pytest.mark.parametrize("kind", [Together, Otherwise])
def test_a_users_vector_environment_is_used_where_it_is_like_the_single_one(kind, caplog):
    name = f"mine/{kind.__name__}-v0"
    gymnasium.register(name, entry_point=SINGLE, vector_entry_point=kind, max_episode_steps=3)
    assert steps_together(name) is (kind is not Otherwise)
    assert ("AutoresetMode.SAME_STEP" in caplog.text) is (kind is Otherwise)
    envs = make_vector_env(name, 2)
    assert isinstance(envs, SyncVectorEnv) is (kind is Otherwise)
    assert isinstance(envs.unwrapped, kind) is (kind is not Otherwise)
    envs.reset(seed=0)
    assert [bool(envs.step(np.zeros(2, np.int64))[3].all()) for _ in range(3)] == [False, False, True]


class Endless(Together):
    def __init__(self, num_envs: int, max_episode_steps: int):
        super().__init__(num_envs, max_episode_steps)  # type: ignore[no-untyped-call]

    def step(self, action: Any) -> Any:
        self.steps[:] = 0
        return super().step(action)


class Shorter(Together):
    def __init__(self, num_envs: int, max_episode_steps: int):
        super().__init__(num_envs, max_episode_steps - 1)  # type: ignore[no-untyped-call]


class Pays(Together):
    reward = 2.0


class Broken(Together):
    reward = float("nan")


class Elsewhere(Together):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed and seed + 1, options=options)


def three(num_envs: int, **options: Any) -> Any:
    return Together(3 if num_envs > 1 else 1, **options)


def picky(num_envs: int) -> Any:  # gymnasium passes max_episode_steps
    return Together(num_envs)  # type: ignore[no-untyped-call]


def normalised(num_envs: int, **options: Any) -> Any:
    return gymnasium.wrappers.vector.NormalizeReward(Together(num_envs, **options))


class Windy(CartPoleEnv):
    """CartPole that pays otherwise."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, 0.5, *others


ADDED = (WrapperSpec("Clipped", "gymnasium.wrappers:ClipReward", {"max_reward": 0.5}),)
GYMNASIUM_S = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"


def of_one_copy(what: str, given: str, own: str, where: str = "step 1") -> str:
    return (
        f"from the same seed and actions, one copy's {what} in {where} is {given}, and the single environment's {own}"
    )


@pytest.mark.parametrize(
    ("entry", "options", "said"),
    [
        (Endless, {}, of_one_copy("truncated", "False", "True", "step 7")),
        (Shorter, {}, "its max_episode_steps is 6, and that of the single environment 7"),
        (
            GYMNASIUM_S,
            {"max_episode_steps": None},
            "its max_episode_steps is 500, and that of the single environment None",
        ),
        (Pays, {}, of_one_copy("reward", "2", "1")),
        (Broken, {}, of_one_copy("reward", "nan", "1")),
        (GYMNASIUM_S, {"entry_point": Windy}, of_one_copy("reward", "1", "0.5")),
        (Elsewhere, {}, of_one_copy("observation", r"[-.\d]+", r"[-.\d]+", r"reset\(\)")),
        (three, {}, "asked for 2 copies, it steps 3"),
        (normalised, {}, r"it keeps running statistics \(NormalizeReward\)"),
        (picky, {}, r"comparing it .* raises TypeError: .*unexpected keyword argument 'max_episode_steps'"),
        (GYMNASIUM_S, {"additional_wrappers": ADDED}, r"comparing it .* raises Error: .*additional_wrappers.*"),
    ],
)
def test_a_vector_environment_that_is_another_one_is_not_used_and_a_line_says_so(entry, options, said, caplog):
    name = f"mine/{getattr(entry, '__name__', 'Gymnasium')}{''.join(options)}-v0"
    asked = {"entry_point": SINGLE, "max_episode_steps": 7, **options}
    gymnasium.register(name, vector_entry_point=entry, **asked)
    assert not steps_together(name)
    (record,) = caplog.records
    assert re.search(rf"^The vector_entry_point of {name} is not used.*: {said}\.$", record.getMessage())
    envs, alone = make_vector_env(name, 2), make_env(name)
    assert isinstance(envs, SyncVectorEnv)
    envs.reset(seed=0)
    alone.reset(seed=0)
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(7)]
    assert steps[-1][3].all() == (asked["max_episode_steps"] == 7)
    assert steps[0][1].tolist() == [alone.step(0)[1]] * 2


def test_options_are_compared_too(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(num_envs: int, sutton_barto_reward: bool = False, **options: Any) -> Any:
        return Together(num_envs, **options)

    gymnasium.register("mine/Deaf-v0", entry_point=SINGLE, vector_entry_point=deaf, max_episode_steps=7)
    assert isinstance(make_vector_env("mine/Deaf-v0", 2).unwrapped, Together)
    assert isinstance(make_vector_env("mine/Deaf-v0", 2, sutton_barto_reward=True), SyncVectorEnv)
    assert of_one_copy("reward", "1", "0") in caplog.text


def test_rewards_of_copies_that_are_no_numbers_are_a_fault() -> None:
    envs = CheckedVectorEnv(Broken(2), "mine")  # type: ignore[no-untyped-call]
    envs.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match=r"step\(\) returned the rewards"):
        envs.step(np.zeros(2, np.int64))


def test_an_episode_of_copies_that_goes_on_after_the_limit_is_a_fault() -> None:
    envs = CheckedVectorEnv(Endless(2, 12), "mine", limit=12)
    for _ in range(2):
        envs.reset(seed=0)
        for _ in range(40):  # the pole falls after 8 to 10 steps, and the next step begins an episode
            envs.step(np.zeros(2, np.int64))
    balanced = np.array([[1, 0], [0, 1]])
    envs.reset(seed=0)
    for step in range(12):
        envs.step(balanced[step % 2])
    with pytest.raises(FaultyEnvironmentError, match=r"goes on after max_episode_steps=12\. Truncate episodes there"):
        envs.step(balanced[0])


def test_procgen_and_the_worlds_of_levels_are_natively_vectorised() -> None:
    assert is_natively_vectorised("procgen/coinrun-easy")
    assert is_natively_vectorised("rlhf_ray/CartPoleFixed-v0")
    assert not is_natively_vectorised("rlhf_ray/MovingDot-v0")
    assert not is_natively_vectorised("CartPole-v1")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("CartPole-v9", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPol", "CartPole-v1"),
        ("gymnasium:CartPolle-v1", "CartPole-v1"),
        ("rlhf_ray/CartPoleFixd-v0", "rlhf_ray/CartPoleFixed-v0"),
        ("MovingDot-v0", "rlhf_ray/MovingDot-v0"),
        ("procgen/coinrn-easy", "procgen/coinrun-easy"),
        ("procgen/coinrun", "procgen/coinrun-easy"),
        ("procgen/coinrun-extreme", "procgen/coinrun-"),
        ("procgen/-easy", "procgen/"),
    ],
)
def test_unknown_names_are_told_the_nearest(name: str, nearest: str) -> None:
    for make in (make_env, lambda unknown: make_vector_env(unknown, 2)):
        with pytest.raises(ValueError, match="The closest names are") as raised:
            make(name)
        text = str(raised.value)
        assert repr(name) in text
        assert nearest in text.split("Valid names are")[0].split("The closest")[1]
        assert "procgen/<game>-<mode>" in text


def test_an_unknown_name_of_a_module_is_told_those_that_the_module_registered(tmp_path, monkeypatch) -> None:
    pendulum = "entry_point='gymnasium.envs.classic_control:PendulumEnv'"
    for module, numbers in (("few_envs", 2), ("many_envs", 12)):
        text = f"import gymnasium\nfor i in range({numbers}):\n    gymnasium.register(f'{module}/Hop{{i}}-v0', {pendulum})\n"
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # the module is imported once
        with pytest.raises(ValueError, match="few_envs registers few_envs:few_envs/Hop0-v0, few_envs:few_envs/Hop1-v0"):
            make_env("few_envs:Hopper-v0")
    with pytest.raises(ValueError, match="closest names are many_envs:many_envs/Hop") as raised:
        make_env("many_envs:many_envs/Hop-v0")
    assert "Hopper" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "%%%", "a:b:c", "/", "no_such_module_of_envs:Thing-v0"])
def test_nonsense_names_are_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match="There is no environment") as raised:
        make_env(name)
    assert repr(name) in str(raised.value)


def test_an_unversioned_name_is_the_latest_version() -> None:
    with pytest.warns(UserWarning, match="latest versioned"):
        env = make_env("CartPole")
    assert env.spec.id == "CartPole-v1"


def test_num_envs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="is 0; it must be at least 1"):
        make_vector_env("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [((3, 12), "pip install --no-deps procgen-mirror"), ((3, 13), r"no build .*: use Python 3\.11 or 3\.12")],
)
def test_procgen_missing_names_the_remedy(version, remedy, monkeypatch):
    monkeypatch.setitem(sys.modules, "procgen", None)
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(ImportError, match=remedy):
        make_env("procgen/coinrun-easy")


@pytest.mark.slow
def test_procgen_is_imported_late_and_silently() -> None:
    pytest.importorskip("procgen")
    program = (
        "import sys, rlhf_ray.envs as e; assert not {'procgen', 'gym', 'ray'} & sys.modules.keys();"
        "e.make_env('procgen/coinrun-easy').reset(seed=0); import gym; gym.spaces.Discrete(2)"
    )
    done = run_python(program)
    assert (done.stdout, done.stderr) == ("", "")


def test_an_id_that_a_script_registered_is_known_where_the_environment_is_made() -> None:
    gymnasium.register("Scripted-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=7)
    taken_along = cloudpickle.dumps(EnvCreator("Scripted-v0"))
    del gymnasium.registry["Scripted-v0"]  # as in another process
    env = cloudpickle.loads(taken_along)({})
    assert env.spec.max_episode_steps == 7


def test_a_class_of_the_script_itself_is_known_where_the_environment_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.classic_control import PendulumEnv

    script = sys.modules["__main__"]
    monkeypatch.setattr(script, "Own", PendulumEnv, raising=False)
    gymnasium.register("Own-v0", entry_point="__main__:Own", max_episode_steps=7)
    taken_along = cloudpickle.dumps(EnvCreator("Own-v0"))
    del gymnasium.registry["Own-v0"]
    monkeypatch.delattr(script, "Own")  # another process has another __main__
    env = cloudpickle.loads(taken_along)({})
    assert env.spec.max_episode_steps == 7
    assert isinstance(env.unwrapped, PendulumEnv)


def an_env(pays: float, file: Path) -> type[gymnasium.Env]:
    class World(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

        def __init__(self, goal: int = 0) -> None:
            self.goal, self.level = goal, file.read_text()

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), pays * (action == self.goal), True, False, {}

    return World


@pytest.fixture
def found(tmp_path, monkeypatch):
    (tmp_path / "level").write_text("wall")

    def remade(pays=1.0, **options):
        monkeypatch.delitem(gymnasium.registry, "Own-v0", raising=False)
        gymnasium.register("Own-v0", an_env(pays, tmp_path / "level"), kwargs=options)
        return identity_of("Own-v0")

    return remade


def test_an_environment_is_its_code_its_options_and_its_files(found, tmp_path):
    first = found()
    assert found() == first
    others = [found(pays=7.0), found(goal=1)]
    (tmp_path / "level").write_text("door")
    others.append(found())
    assert len({first, *others}) == 4


def test_installed_environments_are_their_names():
    assert identity_of("CartPole-v1") == identity_of("CartPole-v1") != identity_of("Pendulum-v1")
    assert identity_of("NoSuch-v0") == "NoSuch-v0"
    assert identity_of(None) == ""


def test_a_threshold_is_the_one_that_the_environment_is_registered_with() -> None:
    assert reward_threshold("CartPole-v1") == gymnasium.spec("CartPole-v1").reward_threshold == 475.0
    assert reward_threshold("any_module:CartPole-v1") == 475.0
    assert reward_threshold("Pendulum-v1") == -250.0
    assert reward_threshold("rlhf_ray/CartPoleFixed-v0") == 475.0
    for none in ("fixed/CartPole-v1", "rlhf_ray/MovingDot-v0", "procgen/coinrun-easy", "Nothing-v0", "module:"):
        assert reward_threshold(none) is None


@pytest.mark.parametrize("name", THRESHOLDS)
def test_only_environments_without_one_are_listed(name: str) -> None:
    register()
    assert gymnasium.spec(name).reward_threshold is None
