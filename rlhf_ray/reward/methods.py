"""What a fit of the reward ensemble may do besides gradient steps on answers.

Methods (`RewardModelSettings.methods`) change labels, batches or the reward. An L2 penalty that adapts to held-out comparisons,
early stopping and averaged weights keep fits from noise. The first two of these compare losses per comparison on fixed sets: a
hash of the pair decides what is held out, so no comparison that a fit has seen is ever used to validate a later one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import RewardModelSettings

UNLABELLED_PAIRS = 512
"""Pairs without labels that each fit gets from the clip pool, if a method wants any."""


@dataclass(frozen=True)
class FitLabels:
    """The training comparisons as a method sees them before a pass.

    Attributes:
        differences: ``[members, n]`` float32: each member's current return of the left fragment minus that of the right one.
        preferences: ``[n]`` float32: the labels: 1 left, 0 right, 0.5 equally good.
        weights: ``[n]`` float32: factor of each comparison's loss.
    """

    differences: Tensor
    preferences: Tensor
    weights: Tensor


class FitMethod:
    """An addition to a fit. Subclass it and override what it changes.

    The constructor of a custom method may take ``settings``, the `RewardModelSettings`.
    """

    unlabelled_ratio: int = 0
    """Pairs without labels per comparison of a batch, for `unlabelled_loss`."""
    revises: bool = False
    """Whether `revise` changes anything: it costs a forward pass over all comparisons."""

    def revise(self, labels: FitLabels) -> FitLabels:
        """Change labels and weights before a pass over the training comparisons. The store keeps the answers as they were."""
        return labels

    def steps(self, pairs: int, length: int, generator: Generator) -> Tensor | None:
        """Draw which steps of each fragment count in a batch of so many ``pairs``, with fragments of ``length`` steps.

        Returns:
            ``[pairs, 2, length]`` float32 factors of the steps' rewards; None for all steps.
        """
        return None

    def unlabelled_loss(self, differences: Tensor, whole: Tensor) -> Tensor | None:
        """Compute a loss of pairs without labels, which is added to the loss of a batch.

        Args:
            differences: ``[members, m]`` float32, with gradients: return differences of the pairs, over the steps that count.
            whole: ``[members, m]`` float32, without gradients: those over all steps.

        Returns:
            ``[members]`` float32; None for no loss.
        """
        return None

    def deviation_weight(self, progress: float) -> float | None:
        """Return the weight of the ensemble's deviation in the reward of this version; None for the setting's.

        ``progress`` is the training's, 0 to 1.
        """
        return None

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the last fit."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


CONFIDENCE = 0.99
"""Least probability of the preferred fragment for a pseudo-label (the paper's τ for locomotion; it also uses 0.999)."""

WEIGHT = 1.0
"""Weight of the pseudo-labels' loss (the paper's λ)."""

RATIO = 4
"""Pairs without labels per comparison of a batch (the paper's μ)."""

CROP = 0.1
"""Largest share of a fragment that a crop leaves out: 5 of 50 steps, as in the paper."""


class Surf(FitMethod):
    """Semi-supervised reward learning with data augmentation (Park et al. 2022).

    Each member labels pairs without answers itself and learns from those labels of which it is confident. It labels whole
    fragments, and learns from crops of them and of answered pairs: a window of the fragment counts, equally long on both sides,
    drawn anew for each batch. For rewards of single steps, leaving steps out of the sum is the same as cutting them off.
    """

    unlabelled_ratio = RATIO

    def steps(self, pairs: int, length: int, generator: Generator) -> Tensor | None:
        """See `FitMethod.steps`: a window of random length and, on each side of each pair, at a random place."""
        shortest = length - round(CROP * length)
        kept = int(torch.randint(shortest, length + 1, (), generator=generator))
        first = torch.randint(0, length - kept + 1, (pairs, 2, 1), generator=generator)
        step = torch.arange(length)
        return ((step >= first) & (step < first + kept)).float()

    def unlabelled_loss(self, differences: Tensor, whole: Tensor) -> Tensor | None:
        """See `FitMethod.unlabelled_loss`: cross entropy of the crops with the member's own confident labels of whole fragments."""
        left = torch.sigmoid(whole)
        labels = (left > 0.5).float()
        confident = (torch.maximum(left, 1 - left) > CONFIDENCE).float()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(differences, labels, reduction="none")
        return WEIGHT * (losses * confident).mean(1)


ALPHA = 0.5
"""α of the paper: how fast the threshold grows with the largest loss of a trusted label."""

FIRST_BETA, LAST_BETA, DECAY_PASSES = 3.0, 1.0, 60
"""β of the paper: the threshold's slack in variances of the losses, and the passes in which it shrinks from the first to the last,
as in the authors' code for locomotion (for Meta-World: 600)."""

MOST_SLACK = 3.0
"""Largest slack, in nats, as in the authors' code."""

RHO_SHARE = 0.1
"""Share of the way that ρ and the running mean go to each pass's, as in the authors' code."""

FLIP = 3 * math.log(10)
"""Loss, in nats, above which a label is turned round: the model gives it a probability below 0.001."""


class Rime(FitMethod):
    """Denoises labels before each pass: leaves out suspected wrong ones, turns round almost certain ones (Cheng et al. 2024).

    A label is trusted if its loss under the ensemble's mean probability is below ``-ln(ρ) + α ρ + β s``, in nats: ρ is a running
    mean, over passes, of the largest loss of a trusted label, s the pooled variance of all trusted losses so far. The first two
    terms bound the loss of wrong labels from below. A label with a loss above `FLIP` is turned round. All others don't count in
    this pass. ρ and s are the authors' code's (`RunningMeanStd`), not the last pass's. Not here: their fit of the reward to novelty
    during the pretraining, and the warm-up of the learning rate.

    It helps if wrong labels are a matter of chance. If an annotator errs where fragments look alike, plain fits are often better.
    """

    revises = True

    def __init__(self) -> None:
        self.rho, self.mean, self.variance, self.count, self.passes = 0.0, 0.0, 1.0, 0, 0
        self._shares = {"trusted_share": 1.0, "flipped_share": 0.0}

    def revise(self, labels: FitLabels) -> FitLabels:
        """See `FitMethod.revise`."""
        left = torch.sigmoid(labels.differences).mean(0).clamp(1e-6, 1 - 1e-6)
        loss = -(labels.preferences * left.log() + (1 - labels.preferences) * (1 - left).log())
        trusted, flipped = loss < self.threshold, loss > FLIP
        if bool(trusted.any()):
            self._count(loss[trusted])
        self.passes += 1
        self._shares = {
            "trusted_share": float((trusted | flipped).float().mean()),
            "flipped_share": float(flipped.float().mean()),
        }
        return replace(
            labels,
            preferences=torch.where(flipped, 1 - labels.preferences, labels.preferences),
            weights=labels.weights * (trusted | flipped),
        )

    def _count(self, losses: Tensor) -> None:
        """Add the losses of a pass's trusted labels to ρ and s."""
        beyond, new = float(losses.mean()) - self.mean, len(losses)
        count = self.count + new
        squares = self.variance * self.count + float(losses.var(correction=0)) * new
        self.variance = (squares + beyond**2 * self.count * new / count) / count
        self.rho += RHO_SHARE * (float(losses.max()) - self.rho)
        self.mean += RHO_SHARE * beyond
        self.count = count

    @property
    def threshold(self) -> float:
        """Loss, in nats, below which a label is trusted."""
        beta = max(LAST_BETA, FIRST_BETA - (FIRST_BETA - LAST_BETA) * self.passes / DECAY_PASSES)
        return -math.log(self.rho + 1e-8) + ALPHA * self.rho + min(beta * self.variance, MOST_SLACK)

    def metrics(self) -> Mapping[str, float]:
        """Return the shares of labels that the last pass used and turned round."""
        return self._shares

    def state(self) -> dict[str, Any]:
        """See `FitMethod.state`."""
        return {name: getattr(self, name) for name in ("rho", "mean", "variance", "count", "passes")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `FitMethod.load_state`."""
        vars(self).update(state)


FIRST, LAST = 0.05, 0.0
"""Weight of the spread at the start and at the end of the training (the paper's β starts at 0.05)."""


class Rune(FitMethod):
    """Adds the standard deviation over members to the reward, with a weight that decays to 0 over the training (Liang et al. 2022).

    Each version of the reward carries its weight. The paper lets it decay with each step.
    """

    def deviation_weight(self, progress: float) -> float | None:
        """See `FitMethod.deviation_weight`."""
        return FIRST + (LAST - FIRST) * min(max(progress, 0.0), 1.0)


METHODS: Registry[FitMethod] = Registry("reward_model.methods", FitMethod, {"surf": Surf, "rime": Rime, "rune": Rune})
"""Built-in methods by name."""


def revise(methods: Iterable[FitMethod], differences: Tensor, preferences: Tensor) -> FitLabels:
    """Return the labels and weights that the methods make, one after the other: see `FitLabels` for the shapes."""
    labels = FitLabels(differences, preferences, torch.ones_like(preferences))
    for method in methods:
        labels = method.revise(labels)
    return labels


def make_methods(settings: RewardModelSettings) -> Sequence[FitMethod]:
    """Make the methods that ``settings.methods`` names, in this order.

    Raises:
        SettingError: no method has such a name, it doesn't behave like a `FitMethod`, or it has a hook that is never called.
    """
    methods = [METHODS.make(name, settings=settings) for name in settings.methods]
    for name, method in zip(settings.methods, methods, strict=True):
        for switch, hook in (("revises", "revise"), ("unlabelled_ratio", "unlabelled_loss")):
            own = getattr(type(method), hook, None) is not getattr(FitMethod, hook)
            if bool(getattr(method, switch)) != own:
                raise SettingError(
                    f"reward_model.methods has {name!r}, whose {switch} is {getattr(method, switch)!r} although it has "
                    f"{'a' if own else 'no'} {hook}() of its own: it is called only if {switch} is set."
                )
    return methods


def unlabelled_pairs(settings: RewardModelSettings) -> int:
    """Return the number of pairs without labels that each fit wants; 0 for none."""
    return UNLABELLED_PAIRS if any(method.unlabelled_ratio for method in make_methods(settings)) else 0


SMALLEST, LARGEST = 1e-6, 1.0
"""Bounds of the coefficient: within them, a few passes lead back from either end."""

FEWEST_HELD_OUT = 10
"""Held-out comparisons from which on their loss is taken for more than noise."""


STEPS = 50
"""Gradient steps that the average is about. On 100 to 200 answers to Pendulum, 20 and 30 % of them wrong, the worst of 25 versions
had a correlation with the true reward on all states of 0.79 and 0.60, in place of 0.69 and 0.48."""


@dataclass(frozen=True)
class PassLosses:
    """Losses and accuracies after one pass over the training comparisons.

    Losses are means per comparison, in nats; accuracies exclude ties. NaN without comparisons.

    Attributes:
        gradient_steps: gradient steps of the fit so far.
        train_loss, held_out_loss: mean loss.
        train_accuracy, held_out_accuracy: share of the answers that the ensemble agrees with.
        l2: coefficient of the L2 penalty.
    """

    gradient_steps: int
    train_loss: float
    held_out_loss: float
    train_accuracy: float
    held_out_accuracy: float
    l2: float = 0.0


class AdaptiveL2:
    """An L2 penalty, ``coefficient * sum(w ** 2)``, that keeps the held-out loss in an interval of multiples of the training loss.

    Above, the coefficient grows by a factor after each pass; below, it shrinks (Christiano et al. 2017, section 2.2.3).
    """

    def __init__(self, coefficient: float = 1e-4, interval: tuple[float, float] = (1.1, 1.5), factor: float = 1.5):
        self.coefficient, self.interval, self.factor = coefficient, interval, factor

    def add_gradient(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the penalty's gradient to the gradients of ``parameters``."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=2 * self.coefficient)

    def adapt(self, losses: PassLosses, held_out: int) -> None:
        """Change the coefficient after a pass; leave it with fewer than `FEWEST_HELD_OUT` comparisons ``held_out``."""
        if held_out < FEWEST_HELD_OUT or not math.isfinite(losses.train_loss + losses.held_out_loss):
            return
        lowest, highest = self.interval
        if losses.held_out_loss > highest * losses.train_loss:
            self.coefficient = min(LARGEST, self.coefficient * self.factor)
        elif losses.held_out_loss < lowest * losses.train_loss:
            self.coefficient = max(SMALLEST, self.coefficient / self.factor)


class EarlyStopping:
    """Ends a fit when the held-out loss has not improved for some passes, and goes back to the best weights."""

    def __init__(self, networks: nn.Module, patience: int):
        self.networks, self.patience = networks, patience
        self._best, self._passes = math.inf, 0
        self._weights: dict[str, Tensor] | None = None

    def stop(self, losses: PassLosses, held_out: int) -> bool:
        """Return whether to stop after this pass; never with fewer than `FEWEST_HELD_OUT` comparisons ``held_out``."""
        if held_out < FEWEST_HELD_OUT or not math.isfinite(losses.held_out_loss):
            return False
        if losses.held_out_loss < self._best:
            self._best, self._passes = losses.held_out_loss, 0
            self._weights = copy.deepcopy(self.networks.state_dict())
            return False
        self._passes += 1
        return self._passes >= self.patience

    def restore_best(self) -> None:
        """Load the weights with the lowest held-out loss, if there was any."""
        if self._weights is not None:
            self.networks.load_state_dict(self._weights)


class WeightAverage:
    """The exponential moving average of weights over gradient steps (Polyak and Juditsky 1992), beside the weights themselves.

    A fit starts from the weights and ends with their average in their place.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self._tensors = list(tensors)
        self._mean: list[Tensor] = []
        self._last: list[Tensor] = []
        """The weights themselves, while the average is in their place."""
        self._steps = 0

    @torch.no_grad()
    def begin(self) -> None:
        """Put the weights where the last fit left them."""
        self._put(self._last)
        self._last = []

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights after a gradient step. The first `STEPS` count the same."""
        if not self._steps:
            self._mean = [tensor.detach().clone() for tensor in self._tensors]
        self._steps += 1
        share = max(1 / self._steps, 1 / STEPS)
        torch._foreach_lerp_(self._mean, self._tensors, share)

    @torch.no_grad()
    def end(self) -> None:
        """Put the average in the weights' place."""
        if self._steps:
            self._last = [tensor.detach().clone() for tensor in self._tensors]
            self._put(self._mean)

    def restart(self) -> None:
        """Forget the average: the weights come from elsewhere."""
        self._steps, self._mean, self._last = 0, [], []

    def state(self) -> dict[str, Any]:
        """Return the state as numpy arrays and plain values."""
        kept = {
            name: {str(number): tensor.cpu().numpy().copy() for number, tensor in enumerate(tensors)}
            for name, tensors in (("mean", self._mean), ("last", self._last))
        }
        return {"steps": self._steps, **kept}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._steps = int(state["steps"])
        self._mean, self._last = (
            [
                torch.as_tensor(np.array(state[name][str(number)])).to(tensor.device)
                for number, tensor in enumerate(self._tensors)
                if str(number) in state[name]
            ]
            for name in ("mean", "last")
        )

    def _put(self, values: Sequence[Tensor]) -> None:
        for tensor, value in zip(self._tensors, values, strict=bool(values)):
            tensor.copy_(value)
