"""What does a reward of your own look at? A report about any function of steps, on steps of your own policy.

    pip install /path/to/rlhf_ray
    python examples/examine_reward.py

The same from the command line, for a run, a saved model or `examine_reward:upright` here:

    rlhf-ray interpret reward RUN

The reward below was meant to swing Pendulum up and hold it there. It forgets the angular velocity, so that passing the top at full
speed is paid as well as standing there. The report says so: it looks at cos(angle) and ignores the velocity. Takes 20 seconds.
"""

import numpy as np

import rlhf_ray as rr
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.report import report_reward
from rlhf_ray.interpret.reward.subject import Subject


def upright(
    observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, terminated: np.ndarray
) -> np.ndarray:
    """The reward of each of ``n`` steps, ``[n]``: the cosine of the angle."""
    return next_observations[:, 0]


def random_steps(count: int) -> rr.Transitions:
    """Steps of random actions; yours would come from your agent."""
    env = rr.make_env("Pendulum-v1")
    env.action_space.seed(0)
    episodes: list[rr.Trajectory] = []
    while sum(map(len, episodes)) < count:
        episodes.append(rr.rollout(env, lambda _: env.action_space.sample(), seed=len(episodes)).trajectory)
    return rr.Transitions.of_trajectories(episodes)


if __name__ == "__main__":
    env = rr.make_env("Pendulum-v1")
    reward = rr.CallableReward(upright, env.observation_space, env.action_space)
    features = regions_of(env.observation_space, names=["cos(angle)", "sin(angle)", "angular velocity"])
    subject = Subject(reward, random_steps(4000), regions=features)
    report = report_reward(subject, "upright_report", ["header", "effects", "by_time", "examples"])
    print(report.screen.text)
    print(f"report: {report.page}")
