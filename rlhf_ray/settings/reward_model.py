"""Settings of the reward model and its fits: to comparisons, and to recorded rewards."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_ray.settings.checks import (
    BelowOne,
    Bounds,
    Count,
    Discount,
    Layers,
    Natural,
    NonNegative,
    Positive,
    Precision,
    Share,
    changeable,
    check_values,
    name_parts,
    require,
)

Activation = Literal["relu", "leaky_relu", "tanh"]
Output = Literal["reward", "probability", "two_part"]
InputNormalisation = Literal["none", "running", "ema", "symlog"]
Part = Annotated[float, Bounds(0, 1, above=True, below=True)]
Balance = Literal["none", "sampler", "inverse_frequency", "drop_zeros"]


@dataclass(frozen=True)
class RewardModelSettings:
    """The reward model, an ensemble of networks, and how it is fitted to the comparisons."""

    network: str = "auto"
    """Reward network: mlp; mixed (an mlp and a sum of functions of single inputs, weighed by answers that bootstrap leaves out);
    cnn; auto (cnn for images, mixed for vectors, mlp without bootstrap); pooled_cnn (3x3 convolutions, their average over the
    image, one output per action; small_cnn, large_cnn and very_large_cnn are it with other convolutions); paper_cnn (Christiano et
    al. 2017), nature and impala (for images; their layers are fixed); per_action (an mlp with one output per action); gru and
    transformer (they read the steps before, at most a fragment's); shaped (an mlp or cnn plus the difference of a learned
    potential); or module:Name for your own network (`rlhf_ray.reward.networks`)."""
    loss: str = "bradley_terry"
    """Loss: bradley_terry (cross-entropy of the Bradley-Terry model with label_noise); label_smoothing (cross-entropy with each
    answer's probability of being right, by label_noise, for many wrong answers); or module:Name for your own loss
    (`rlhf_ray.reward.likelihood.Loss`)."""
    hidden: Layers = (64, 64)
    """Number of units in each hidden layer (for a cnn: in each layer after the convolutions)."""
    convolutions: Layers = (32, 64)
    """Number of filters of each convolution of a pooled_cnn."""
    activation: Activation = "leaky_relu"
    """Activation function of the hidden layers."""
    output: Output = "reward"
    """What becomes the reward: reward (the network's output); probability (its sigmoid); two_part (the sigmoid of one network times
    the output of another). A fit to recorded rewards sets it (`SupervisedSettings.objective`)."""
    dropout: BelowOne = 0.0
    """Probability (0 ≤ x < 1) with which a fit drops each hidden unit. Each step draws its own mask."""
    batch_norm: bool = False
    """Whether hidden layers are normalised over the batch (left and right fragments together) in a fit, and by the averages of the
    fits afterwards."""
    normalize_inputs: InputNormalisation = "symlog"
    """How vector observations are normalised: none; running (mean 0 and standard deviation 1 over all steps compared so far); ema
    (by exponential moving averages of these statistics over fits, which change less from fit to fit); symlog (running, of
    sign(x) log(1 + abs(x)): small values keep their differences beside rare large ones; Hafner et al. 2023)."""
    shaping_discount: Discount = 0.99
    """Discount factor γ of the network shaped, which adds γΦ(s') - Φ(s). The agent's own discount factor keeps its best policy."""
    use_state: bool = True
    """Whether the observation before the step is an input of the reward."""
    use_action: bool = True
    """Whether the action is an input."""
    use_next_state: bool = False
    """Whether the observation after the step is an input."""
    use_done: bool = False
    """Whether the end of the episode is an input."""
    normalize_outputs: bool = True
    """Whether each member's rewards are normalised to mean 0 and standard deviation 1 over the steps compared (Christiano et al.
    2017). False: the agent gets them on the likelihood's scale, which grows with the number of fits."""
    ensemble_size: Count = 3
    """Number of ensemble members. The learned reward is the mean of their normalised outputs (see deviation_weight)."""
    deviation_weight: float = 0.0
    """Weight of the members' standard deviation in the learned reward: mean + weight * deviation. Negative: avoid what the members
    disagree about. Positive: explore it."""
    bootstrap: bool = True
    """Whether each ensemble member is fitted to its own random four fifths of the comparisons, so that members differ (a bootstrap
    without replacement: one with replacement would double the variance of a batch's gradient)."""
    learning_rate: Positive = changeable(3e-3)
    """Learning rate of AdamW."""
    weight_decay: NonNegative | Literal["auto"] = changeable("auto")
    """Weight decay of AdamW. auto: 5 for the networks mlp, mixed and cnn, so that they do not learn wrong answers by heart, and
    generalise from few; 0.01 for others."""
    batch_size: Count = changeable(32)
    """Comparisons per gradient step."""
    initial_updates: Count = 400
    """Gradient steps of the first fit."""
    initial_epochs: Positive | None = None
    """In place of initial_updates: passes of the first fit over the answers so far. None: initial_updates."""
    updates: Count = changeable(60)
    """Gradient steps of each later fit, which starts from the previous weights and uses all comparisons so far."""
    window: Count | None = None
    """Number of newest comparisons used in a fit; older ones stay in the store. None: all."""
    label_noise: BelowOne | None = changeable(None)
    """Fraction (0 ≤ x < 1) of answers assumed to be random, half of them wrong. None: twice each annotator's error rate, which each
    fit estimates from answers that members of the ensemble were not fitted to (`rlhf_ray.reward.annotators`)."""
    annotator_rationality: bool = False
    """Whether to estimate each annotator's rationality during and after each fit: how much a difference between two fragments
    decides their answers, relative to the others. For several annotators; needs some hundred answers."""
    largest_log_odds: Positive | None = None
    """Largest log odds of an answer in the likelihood (`imitation`'s threshold, there 50): beyond them, a comparison has no
    gradient. None: no limit, which is numerically safe too."""
    adaptive_l2: bool = False
    """Whether to add an L2 penalty whose coefficient adapts after each pass, so that the held-out loss stays between 1.1 and 1.5
    times the training loss (Christiano et al. 2017, section 2.2.3). Needs 10 held-out comparisons (preferences.held_out_share)."""
    l2_interval: tuple[float, float] = (1.1, 1.5)
    """With adaptive_l2: smallest and largest held-out loss, in multiples of the training loss, at which the coefficient stays."""
    l2_factor: Annotated[float, Bounds(1, above=True)] = 1.5
    """With adaptive_l2: factor (above 1) by which the coefficient grows above the interval, and shrinks below it, after a pass."""
    early_stopping: Count | None = None
    """Passes over the comparisons without a lower held-out loss after which a fit stops and goes back to its best weights. Needs 10
    held-out comparisons. None: fits always take all their gradient steps."""
    methods: tuple[str, ...] = ()
    """Additions to the fits: surf (pseudo-labels of confident pairs that nobody was asked about, and temporal crops), rime
    (leaves out or turns round suspected wrong labels), rune (adds the ensemble's spread to the reward, fading over training); or
    module:Name for your own (`rlhf_ray.reward.methods.FitMethod`)."""
    discount: Discount = 1.0
    """Discount factor per step within a fragment, in the likelihood. 1: no discount."""
    precision: Precision = "auto"
    """Numbers of a cnn's convolutions in gradient steps: float32; bfloat16; or auto (bfloat16 on CPUs with instructions for it,
    otherwise float32). Rewards are always computed in float32."""
    gpus: Share = 0.0
    """GPUs of the reward trainer. 1: one GPU for itself. A fraction such as 0.5 (with ppo.gpus_per_learner=0.5): share one with a
    learner. 0: fit on the CPU, which is faster for small networks on vectors."""

    def __post_init__(self) -> None:
        name_parts(self, "network", "loss", "methods")
        check_values(self, "reward_model")
        require(
            bool(self.use_state or self.use_action or self.use_next_state or self.use_done),
            "reward_model.use_state",
            False,
            "the reward needs at least one input: enable use_state, use_action, use_next_state or use_done",
        )
        interval = self.l2_interval
        valid = len(interval) == 2 and 0 <= interval[0] < interval[1]
        require(valid, "reward_model.l2_interval", interval, "it must be two numbers, 0 or more, the smaller one first")

    @property
    def models_annotators(self) -> bool:
        """Whether anything is estimated about annotators."""
        return self.label_noise is None or self.annotator_rationality

    def first_updates(self, answers: int, least_epochs: float = 0.0) -> int:
        """Gradient steps of the first fit.

        Args:
            answers: number of answers to fit to.
            least_epochs: passes over them to take at least, unless initial_epochs is set.
        """
        epochs = least_epochs if self.initial_epochs is None else self.initial_epochs
        in_passes = math.ceil(epochs * max(1, answers) / self.batch_size)
        return in_passes if self.initial_epochs is not None else max(self.initial_updates, in_passes)


SUPERVISED_MODEL = RewardModelSettings(
    ensemble_size=1, bootstrap=False, use_next_state=True, normalize_inputs="running"
)
"""Defaults of the reward model for a fit to recorded rewards: one network that sees the state, the action and the next state."""


@dataclass(frozen=True)
class SupervisedSettings:
    """How a reward model is fitted to recorded rewards."""

    objective: str = "regression"
    """What is fitted: regression (squared error); huber (squared error, absolute beyond one unit: for outliers); classification
    (whether the reward is zero; the learned reward is the probability that it is not); two_part (whether the reward is zero, and
    how large it is otherwise); or module:Name for your own (`rlhf_ray.reward.supervised.objectives.RewardObjective`)."""
    balance: Balance = "none"
    """How training makes up for rare zero or nonzero rewards: none; sampler (draws both kinds equally often); inverse_frequency
    (weights the loss); drop_zeros (leaves zero-reward steps out). The test part is never changed."""
    keep_zeros: Discount | None = None
    """Fraction (0 < x ≤ 1) of the zero-reward training steps that drop_zeros keeps. None: as many as there are nonzero ones."""
    test_share: Part = 0.2
    """Fraction (0 < x < 1) of the episodes that are only tested on."""
    epochs: Count = 10
    """Passes over the training steps. An epoch has as many gradient steps with each balance."""
    batch_size: Count = 64
    """Steps per gradient step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    adversarial_rounds: Natural = 0
    """Rounds of adversarial training after the fit. In each, visualise inputs that the reward scores highly, and train on them with
    nonsense_reward. 0: none."""
    adversarial_share: Part = 0.1
    """Fraction (0 < x < 1) of each batch that are visualisations in adversarial training."""
    nonsense_reward: float | None = None
    """Reward of visualisations in adversarial training. None: the median of the training rewards."""

    def __post_init__(self) -> None:
        name_parts(self, "objective")
        check_values(self, "supervised")
        require(
            self.keep_zeros is None or self.balance == "drop_zeros",
            "supervised.keep_zeros",
            self.keep_zeros,
            f"supervised.balance={self.balance} keeps all steps: set it to drop_zeros, or remove keep_zeros",
        )
