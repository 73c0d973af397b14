"""CartPoleFixed: balance the pole in episodes that always last 500 steps; 200 comparisons, 200,000 environment steps."""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="rlhf_ray/CartPoleFixed-v0",
    total_env_steps=200_000,
    # A fallen pole stays down, and two fragments of fallen poles are a tie, so half of the fragments are episode starts.
    fragments=settings.FragmentSettings(length=25, start_share=0.5, initial_env_steps=4_000, pool=2_000),
    # An early correct reward decides the outcome, and late fragments of an agent that balances are ties: ask most labels early. The
    # ensemble disagrees most about fallen poles: pairs selected by that alone were mostly ties, and so are many random ones.
    # Answerable pairs are no easier (human_like gets 21 % of them wrong, of random ones 19 %), but with them none of six runs
    # failed, and two did with random pairs (docs/people_err.md).
    preferences=settings.PreferenceSettings(
        comparisons=200,
        initial_comparisons=0.5,
        rounds=97,
        selection="answerable",
    ),
    # The state pays, not the action: as an input, it got a part in the reward, and the agent preferred one action until it fell.
    # After a fall, observations reach hundreds, where a fraction of a radian decides: symlog. A bounded reward has sharp borders.
    reward_model=settings.RewardModelSettings(
        activation="tanh",
        use_action=False,
        output="probability",
        weight_decay=1.0,  # 10 smooths the borders away
    ),
    ppo=settings.PPOSettings(
        num_envs=4,
        rollout_length=500,  # one episode
        entropy_coefficient=0.0,
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the pole that stays more upright while its cart stays on the white track. Goal: balance to the end. "
        "If both fall: the later fall."
    ),
)

VARY = {"fragments.start_share": [0.0, 0.25, 0.5], "preferences.selection": ["random", "answerable", "disagreement"]}
"""See above: late fragments of a good agent are ties."""
