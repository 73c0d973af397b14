"""`env_threads` for environments that step in a loop: the same run, its copies in processes of their own."""

from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv
from ray import tune

from rlhf_ray.data.system import CORES
from rlhf_ray.envs.processes import ProcessesVectorEnv
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.env_runner import EnvRunner, env_threads
from rlhf_ray.rllib.reference import ReferencePPOConfig, ReferenceSACConfig
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.runs.train import train
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings
from tests.whole_runs import differences, left_behind, small

LOOP = "rlhf_ray/AcrobotFixed-v0"


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "kind"), [("ppo", ReferencePPOConfig), ("sac", ReferenceSACConfig)])
def test_the_copies_of_an_env_runner_step_in_as_many_processes_as_there_are_threads(agent: Any, kind: Any) -> None:
    groups: dict[str, Any] = {"ppo": PPOSettings, "sac": SACSettings}
    starts = []
    for threads in ("auto", 1, 2):
        group = groups[agent](env_threads=threads, num_envs=3)
        config = kind.from_experiment(Experiment(environment=LOOP, agent=agent, **{agent: group}))
        config.validate()
        runner = EnvRunner(config=config, worker_index=0, num_workers=0)
        assert type(runner.env.unwrapped) is (ProcessesVectorEnv if threads == 2 else SyncVectorEnv)
        assert not runner.env.closed
        starts.append(runner._try_env_reset(seed=1)[0])
        runner.stop()
        assert runner.env is None or runner.env.closed
    assert starts[0].tolist() == starts[1].tolist() == starts[2].tolist()
    assert len({tuple(start) for start in starts[0].reshape(3, -1).tolist()}) == 3


def test_a_creator_of_the_user_s_gets_no_option_that_it_does_not_know() -> None:
    tune.register_env("theirs", lambda context: None)
    config = PreferencePPOConfig().environment("theirs")
    assert env_threads(Experiment(environment="theirs", ppo=PPOSettings(env_threads=2))) == {}
    assert config.gym_env_vectorize_mode != "vector_entry_point"
    assert PreferencePPOConfig().environment(LOOP).gym_env_vectorize_mode == "vector_entry_point"
    assert env_threads(Experiment(environment=LOOP, ppo=PPOSettings(env_threads=2))) == {"worker_processes": 2}


def test_the_bound_of_cores_holds_for_threads_and_processes_that_a_setting_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CORES, "3")
    PreferencePPOConfig().environment(LOOP)
    for name, option in (("envpool/WalkerWalk-v1", "num_threads"), (LOOP, "worker_processes")):
        for threads, used in ((2, 2), (8, 3)):
            assert env_threads(Experiment(environment=name, ppo=PPOSettings(env_threads=threads))) == {option: used}


@pytest.mark.slow
def test_a_run_is_the_same_in_one_process_and_in_two(tmp_path: Path) -> None:
    left = []
    for threads in (1, 2):
        ppo = PPOSettings(
            num_envs=4, rollout_length=150, minibatch_size=200, epochs=2, hidden=(16,), env_threads=threads
        )
        folder = new_run(tmp_path / str(threads), small(environment=LOOP, ppo=ppo))
        train(folder, evaluation_episodes=2)
        left.append(left_behind(folder.path))
    assert not differences(*left)
    assert len(left[0]["metrics"]) > 3
