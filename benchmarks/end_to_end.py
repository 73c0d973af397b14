"""End to end: CPU seconds of a whole Pendulum run, beside imitation matched step for step, each as a command of its own.

Ours is `rlhf-ray train pendulum` with everything that it does: checkpoints, evaluations of the trained agent and of random actions,
the report. imitation 1.0.1 does the same training: 100,000 steps of PPO (Stable-Baselines3) with the preset's settings and network
sizes, 200 comparisons of fragments of 10 steps in as many rounds, reward networks of 64-64 units in batches of 32 with as many
gradient steps in all, to within a few percent (the record has both numbers), and 20 evaluation episodes; with an ensemble of three,
as ours, and with a single network.

CPU seconds are summed over all processes that a command starts. Arms take turns, ABC, CBA; the first turn is not counted.

    python benchmarks/end_to_end.py                # 4 turns: half an hour
    python benchmarks/end_to_end.py --turns 2      # a look

Writes benchmarks/results/end_to_end.json.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TQDM_DISABLE"] = "1"

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import ratio
from benchmarks.record import record
from benchmarks.start import PR_SET_CHILD_SUBREAPER, follow

ROUNDS, COMPARISONS, STEPS = 31, 200, 100_000
EPOCHS = {1: 4, 3: 4}
"""Passes over the comparisons in each of imitation's rounds, by networks: so many come to as many gradient steps as ours."""


def imitation(members: int, seed: int) -> None:
    """Run imitation's arm and print how much it did."""
    import numpy as np
    import torch
    from imitation.algorithms import preference_comparisons as pc
    from imitation.rewards.reward_nets import BasicRewardNet, RewardEnsemble
    from imitation.util.logger import configure
    from imitation.util.util import make_vec_env
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    venv = make_vec_env("Pendulum-v1", rng=rng, n_envs=16)
    spaces = venv.observation_space, venv.action_space
    networks = [BasicRewardNet(*spaces, hid_sizes=(64, 64)) for _ in range(members)]
    network: Any = networks[0] if members == 1 else RewardEnsemble(*spaces, networks)
    model = pc.PreferenceModel(network)
    settings: dict[str, Any] = {"n_steps": 200, "batch_size": 256, "n_epochs": 10, "learning_rate": 2e-3}
    settings |= {"gamma": 0.98, "gae_lambda": 0.9, "ent_coef": 0.0, "policy_kwargs": {"net_arch": [64, 64]}}
    agent = PPO("MlpPolicy", venv, **settings, seed=seed)
    silent = configure(tempfile.mkdtemp(prefix="imitation"), format_strs=[])  # spares it its output
    steps = 0
    for each in networks:

        def count(*arguments: Any, forward: Any = each.forward) -> Any:
            nonlocal steps
            steps += torch.is_grad_enabled()
            return forward(*arguments)

        each.forward = count  # type: ignore[method-assign]
    fits = pc.BasicRewardTrainer if members == 1 else pc.EnsembleTrainer
    training = pc.PreferenceComparisons(
        pc.AgentTrainer(algorithm=agent, reward_fn=network, venv=venv, rng=rng),
        network,
        num_iterations=ROUNDS,
        fragmenter=pc.RandomFragmenter(warning_threshold=0, rng=rng),
        preference_gatherer=pc.SyntheticGatherer(rng=rng),
        reward_trainer=fits(
            model, pc.CrossEntropyRewardLoss(), rng=rng, batch_size=32, epochs=EPOCHS[members], custom_logger=silent
        ),
        fragment_length=10,
        transition_oversampling=1,
        initial_comparison_frac=0.25,
        initial_epoch_multiplier=50,
        custom_logger=silent,
        query_schedule="constant",
    )
    training.train(total_timesteps=STEPS - 1600, total_comparisons=COMPARISONS)
    evaluated = make_vec_env("Pendulum-v1", rng=np.random.default_rng(seed + 1), n_envs=8)
    mean, _ = evaluate_policy(agent.policy, evaluated, 20)
    print(json.dumps({"ppo_steps": agent.num_timesteps, "reward_pairs": steps / 2, "return": float(mean)}))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--imitation", type=int, choices=tuple(EPOCHS), help="run its arm only, with so many networks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.imitation:
        imitation(options.imitation, options.seed)
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    seconds: dict[str, list[float]] = {"ours": [], "imitation, 3 networks": [], "imitation, 1 network": []}
    did: dict[str, Any] = {}
    for turn in range(options.turns + 1):
        for arm in list(seconds) if turn % 2 else list(seconds)[::-1]:
            with tempfile.TemporaryDirectory(prefix="end") as folder:
                if arm == "ours":
                    program = str(Path(sys.executable).with_name("rlhf-ray"))
                    command = [program, "train", "pendulum", "--seed", str(turn), "--run-dir", f"{folder}/run"]
                else:
                    command = [sys.executable, __file__, "--imitation", arm.split()[1], "--seed", str(turn)]
                found = follow(command, Path(folder))
                if turn:
                    seconds[arm].append(found["cpu_seconds"])
                lines = Path(folder, "log").read_text().splitlines()
                did[arm] = lines[-1] if arm != "ours" else _done(Path(folder, "run"))
                print(
                    f"turn {turn}: {arm}: {found['cpu_seconds']:.1f} CPU s, {found['wall_seconds']:.1f} s", flush=True
                )
    ratios = {arm: ratio(seconds["ours"], values) for arm, values in seconds.items() if arm != "ours"}
    outcome = {"cpu_seconds": seconds, "did": did, "ratios": ratios}
    print(json.dumps(outcome["ratios"], indent=1))
    if options.turns >= 4:
        record("end_to_end", outcome)


def _done(run: Path) -> str:
    """How much our arm did."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    pairs = sum(row.get("gradient_steps") or 0 for row in rows) * 32
    return json.dumps({"env_steps": rows[-1]["env_steps"], "reward_pairs_at_most": 3 * pairs})


if __name__ == "__main__":
    main()
