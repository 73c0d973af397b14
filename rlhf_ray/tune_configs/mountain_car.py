"""MountainCar with episodes of 200 steps: swing up to the flag; 200 comparisons, 200,000 environment steps.

The true reward is -1 until the flag and 0 from then on. A scripted teacher has nothing to say about fragments that miss it, as
those of random actions do. So people compare, who see which car gets higher. All other settings are those of
`rlhf_ray.tune_configs.cartpole`; none is tuned here.
"""

from rlhf_ray.settings import FragmentSettings
from rlhf_ray.tune_configs import cartpole

experiment = cartpole.experiment.changed(
    environment="fixed/MountainCar-v0",
    fragments=FragmentSettings(pool=400),
    # Random actions hardly move the car: later fragments are worth more questions. PPO does not wait for answers.
    preferences={
        "initial_comparisons": 0.25,
        "selection": "random",
        "teacher": "human",
        "mode": "asynchronous",
    },
    reward_model={"weight_decay": 1e-2},
    ppo={"num_envs": 8, "rollout_length": 200},
    labelling={
        "instructions": "Prefer the car that gets higher on either side; then the one nearer to the flag. Goal: reach the flag."
    },
)
