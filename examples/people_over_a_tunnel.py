"""People teach: they compare clips in a browser on another machine, reached through SSH, while PPO learns here.

    pip install /path/to/rlhf_ray
    python examples/people_over_a_tunnel.py [--comparisons 60] [--annotators ada bob]

It prints a command and a link for each person. The command forwards the page's port through SSH: the page is served on 127.0.0.1,
and the network never sees it. Whoever has a link labels in its owner's name, so hand each out in private. An answer is on the disk
before it is acknowledged. Training asks in 6 rounds and waits for the answers to each: about five minutes for a person, and one
for training.
"""

import argparse
import getpass
import socket
from pathlib import Path
from urllib.parse import urlsplit

import rlhf_ray as rr

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--comparisons", type=int, default=60, help="answers to ask for in all")
parser.add_argument("--annotators", nargs="+", default=["ada"], help="who labels")
parser.add_argument("--folder", type=Path, default=Path("people"), help="where answers and links are kept")
options = parser.parse_args()

algorithm = (
    rr.PreferencePPOConfig()
    .environment("Pendulum-v1")
    .env_runners(num_envs_per_env_runner=8)
    .training(train_batch_size=1_600, minibatch_size=128, lr=1e-3, gamma=0.95, lambda_=0.9)
    .fragments(length=10)
    .preferences(teacher="human", comparisons=options.comparisons, rounds=5, total_env_steps=30_000)
    .preferences(store=options.folder / "preferences")
    .reward_model(learning_rate=2e-3)
    .labelling(instructions="Prefer the pendulum nearer to upright; if both are, the stiller one.")
    .labelling(annotators=tuple(options.annotators), sessions=options.folder / "labelling.json")
    .debugging(seed=0)
    .build_algo()
)
for name, link in algorithm.links.items():
    port = urlsplit(link).port
    print(f"{name}: ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}")
    print(f"{name}: {link}", flush=True)
returns: list[float] = []
while not algorithm.finished:
    result = algorithm.train()  # waits for answers
    returns.append(result["env_runners"]["episode_return_mean"])
    print(f"{result['preferences']['comparisons']:.0f} answers, true return {returns[-1]:.0f}", flush=True)
algorithm.stop()
print(f"true return: {returns[0]:.0f} in the first iteration, {returns[-1]:.0f} in the last; answers: {options.folder}")
