"""Ray Tune from Python: how many comparisons does Pendulum need? Trials of `PreferencePPO`, like those of any RLlib algorithm.

    pip install /path/to/rlhf_ray
    python examples/tune_from_python.py

Each trial asks, learns and stops by itself: when its environment steps are spent it reports `done`, so no `stop` is needed. Two
trials, one after the other, take a minute. From the command line, with a report and resuming:

    rlhf-ray tune pendulum --vary preferences.comparisons=10,100
"""

import tempfile

from ray import tune

import rlhf_ray as rr

config = (
    rr.PreferencePPOConfig.from_experiment(rr.preset("pendulum"))
    .preferences(comparisons=tune.grid_search([10, 100]), total_env_steps=60_000)
    .debugging(log_level="ERROR")
)
folder = tempfile.mkdtemp(prefix="rlhf_ray-")
results = tune.Tuner(
    rr.PreferencePPO,
    param_space=config,
    tune_config=tune.TuneConfig(metric="env_runners/episode_return_mean", mode="max", max_concurrent_trials=1),
    run_config=tune.RunConfig(name="comparisons", storage_path=folder, verbose=0),
).fit()

for result in results:
    of, true_return = result.metrics["preferences"], result.metrics["env_runners"]["episode_return_mean"]
    print(f"{of['comparisons']:4.0f} comparisons, {of['env_steps']:.0f} steps: true return {true_return:.0f}")
best = results.get_best_result().metrics["preferences"]
print(f"best: {best['comparisons']:.0f} comparisons; all results are in {folder}")
