"""An attribution method of your own: what does the reward lose when a part of the input is mirrored about its typical value?

    pip install /path/to/rlhf_ray
    python examples/own_attribution.py

Takes some seconds. The same from the command line, in the folder of this file (or `interpret agent`):

    rlhf-ray interpret reward RUN --methods saliency own_attribution:Mirror
"""

import gymnasium as gym
import numpy as np

import rlhf_ray as rr
from rlhf_ray.interpret.attribution import Method, spread
from rlhf_ray.interpret.reward.report import report_reward
from rlhf_ray.interpret.reward.subject import Subject


class Mirror(Method):
    """Half of the fall when a part is mirrored: exact where the reward is linear."""

    def attribute(self, question, moments):
        """Return the maps."""
        before, maps = question.values(moments), {}
        for name, own in question.arrays(moments).items():
            mirrored = [np.where(mask, 2 * question.usual(name) - own, own) for mask in question.parts(name)[1]]
            falls = before - question.changed(moments, name, np.stack(mirrored))
            maps[name] = spread(falls.T / 2, question.parts(name)[1])
        return maps


if __name__ == "__main__":
    space, zeros = gym.spaces.Box(-1, 1, (3,), np.float32), np.zeros(500)
    reward = rr.CallableReward(lambda seen, *_: seen[:, 0] + 3 * seen[:, 1] ** 3, space, gym.spaces.Discrete(2))
    seen = np.random.default_rng(0).uniform(-1, 1, (500, 3)).astype(np.float32)
    steps = rr.Transitions(seen, zeros.astype(int), seen, zeros > 0, zeros, zeros.astype(int), np.arange(500))
    report = report_reward(Subject(reward, steps, methods=(Mirror, "occlusion_donor")), "report", ["attribution"])
    print(*(" | ".join(map(str, row)) for row in report.sections[0].tables[0].rows), sep="\n")
