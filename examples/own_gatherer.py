"""A gatherer that looks at films: it answers from what a person would see, as a vision model would.

    pip install /path/to/rlhf_ray
    python examples/own_gatherer.py

It takes about a minute.
"""

from collections.abc import Callable, Sequence

import numpy as np

import rlhf_ray as rr


class Looks:
    """Compares films, each ``[frames, height, width, 3]`` uint8."""

    wants_films = True  # so that fragments are filmed

    def __init__(
        self, commit: Callable[[rr.Comparisons], object], films: Callable[[rr.Fragments], Sequence[np.ndarray]]
    ):
        self.commit, self.films = commit, films

    def ask(self, number: int, pairs: rr.Pairs) -> None:
        """Called with pairs to compare. 1: the left fragment is better, 0: the right one."""
        left, right = (np.array([self.score(film) for film in self.films(side)]) for side in (pairs.left, pairs.right))
        self.commit(rr.Comparisons(pairs, (left > right).astype(np.float32), ("looks",) * len(pairs)))

    def score(self, film: np.ndarray) -> float:
        """How red the left half is, which the pendulum is: how much green it lacks."""
        return float(255.0 - film[:, :, : film.shape[2] // 2, 1].mean())


if __name__ == "__main__":
    config = rr.PreferencePPOConfig().environment("Pendulum-v1")
    algorithm = config.preferences(gatherer=Looks, comparisons=20, rounds=2, total_env_steps=12_000).build_algo()
    while not algorithm.finished:
        result = algorithm.train()
    algorithm.stop()
    print(f"{result['preferences']['comparisons']:.0f} answers from films")
