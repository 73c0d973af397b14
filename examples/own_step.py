"""A step of your own in a study: how often is the reward exactly zero?

    pip install /path/to/rlhf_ray
    python examples/own_step.py

Takes some seconds. The same from the command line, in the folder of this file:

    rlhf-ray interpret reward RUN --steps header own_step:ZEROS
"""

from pathlib import Path

import gymnasium as gym
import numpy as np

import rlhf_ray as rr
from rlhf_ray.interpret.reward.report import report_reward
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study import Section, Step, StepContext, Table


def zeros(context: StepContext[Subject]) -> Section:
    """Count zeros: the runner keeps the section, and runs the step again only if data, reward or code change."""
    subject = context.subject
    share = float((subject.reward.of(subject.data) == 0).mean())
    table = Table(["steps", "share"], [["with a reward of exactly 0", share]])
    return Section("zeros", "Zero rewards", tables=[table], values={"share": share})


ZEROS = Step("zeros", "Zero rewards", zeros)

if __name__ == "__main__":
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    reward = rr.CallableReward(lambda seen, acts, then, ended: np.maximum(seen[:, 0], 0), space, gym.spaces.Discrete(2))
    seen = np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32)
    nothing = np.zeros(1000, int)
    steps = rr.Transitions(seen, nothing, seen, nothing.astype(bool), np.full(1000, np.nan), nothing, np.arange(1000))
    report = report_reward(Subject(reward, steps), Path("zero_report"), ["own_step:ZEROS"])
    print(f"report: {report.page}")
