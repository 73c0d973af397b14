"""PanelData: what a panel shows, as padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class PanelSaliency:
    """Saliency maps of one quantity for some of the samples.

    Attributes:
        rows: the samples, ``[m]``.
        maps: signed, ``[m, T, height, width]`` for images, ``[m, T, features]`` for vectors. NaN where not computed.
        doubt: why not to trust them: they are drawn crossed out; empty if they are faithful.
    """

    rows: IntArray
    maps: FloatArray
    doubt: str = ""


@dataclass(frozen=True)
class PanelRollout:
    """One side of a pair.

    Attributes:
        observations: ``[T, …]``, as those of `PanelData`.
        actions: ``[T]`` for Discrete, else ``[T, dimensions]``.
        values: ``[T]``.
        outcome: how it ended; empty if it goes on or nobody knows.
    """

    observations: Array
    actions: Array
    values: FloatArray
    outcome: str = ""


@dataclass(frozen=True)
class PanelPair:
    """Two rollouts from the same start: A without, B with an intervention or an edit of the level.

    Attributes:
        name: what was changed in B, in a few words.
        about: what to look at, one sentence.
        simulated: the rollouts come from the world model, not from the environment.
        a, b: the rollouts.
        sample: the sample that they start from; None if it is not in the panel.
    """

    name: str
    about: str
    simulated: bool
    a: PanelRollout
    b: PanelRollout
    sample: int | None = None


@dataclass(frozen=True)
class PanelData:
    """``n`` samples of at most ``T`` steps with ``k`` components. Steps after a sample's length are padding.

    Attributes:
        title: heading of the page.
        observations: ``[n, T, height, width, channels]`` uint8 for images, ``[n, T, features]`` for vectors.
        lengths: steps of each sample, ``[n]``, at least 1.
        actions: ``[n, T]`` for Discrete, else ``[n, T, dimensions]``.
        action_names: of the Discrete actions, or of the dimensions.
        values, rewards: ``[n, T]``.
        loadings: scores of the components, ``[n, T, k]``.
        components: their names.
        logits: of Discrete actions, ``[n, T, actions]``; None for others.
        gradients: of each quantity by the components' scores, ``[n, T, k]``. NaN where not computed.
        saliency: maps of each quantity.
        paths: share of each path in the gradient of each quantity, ``[n, T, paths]``. NaN where not computed.
        path_names: of the paths, for example memory, world, frame.
        labels: clusters or behaviours, by the name of the clustering, ``[n, T]``; -1 for none.
        label_names: names of the labels of each clustering; numbers if missing.
        outcomes: how each sample ended, ``[n]``; empty if it goes on.
        levels: seed of each sample's level, ``[n]``.
        base: scores ``[N, k]`` of the grey points behind a sample's path; default: some of the samples' own.
        maps: two-dimensional maps (t-SNE, UMAP) by name: points ``[N, 2]`` of `base` and ``[n, T, 2]`` of the samples.
        pairs: rollouts side by side.
        horizon: number of simulated steps that can be trusted; later ones are greyed. None: no limit is known.
        simulated: the samples come from the world model, so that the horizon applies to them as well.
        feature_names: of vector observations.
        notes: what the panel was made from, shown at its end: agent, estimator, …
    """

    title: str
    observations: Array
    lengths: IntArray
    actions: Array
    action_names: Sequence[str]
    values: FloatArray
    rewards: FloatArray
    loadings: FloatArray
    components: Sequence[str]
    logits: FloatArray | None = None
    gradients: Mapping[str, FloatArray] = field(default_factory=dict)
    saliency: Mapping[str, PanelSaliency] = field(default_factory=dict)
    paths: Mapping[str, FloatArray] = field(default_factory=dict)
    path_names: Sequence[str] = ()
    labels: Mapping[str, IntArray] = field(default_factory=dict)
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outcomes: Sequence[str] = ()
    levels: IntArray | None = None
    base: FloatArray | None = None
    maps: Mapping[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    pairs: Sequence[PanelPair] = ()
    horizon: int | None = None
    simulated: bool = False
    feature_names: Sequence[str] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, steps, k = self.loadings.shape
        if n == 0 or steps == 0:
            raise SettingError("The panel has no samples: record at least one episode.")
        wanted = {
            "observations": (self.observations.shape[:2], (n, steps)),
            "lengths": (self.lengths.shape, (n,)),
            "actions": (self.actions.shape[:2], (n, steps)),
            "values": (self.values.shape, (n, steps)),
            "rewards": (self.rewards.shape, (n, steps)),
            "components": ((len(self.components),), (k,)),
            "outcomes": ((len(self.outcomes) or n,), (n,)),
            **{f"gradients of {name}": (one.shape, (n, steps, k)) for name, one in self.gradients.items()},
            **{f"paths of {q}": (one.shape, (n, steps, len(self.path_names))) for q, one in self.paths.items()},
            **{f"labels of {name}": (one.shape, (n, steps)) for name, one in self.labels.items()},
            **{f"saliency of {q}": (one.maps.shape[:2], (len(one.rows), steps)) for q, one in self.saliency.items()},
            **{f"map {name}": (own.shape, (n, steps, 2)) for name, (_, own) in self.maps.items()},
        }
        if self.logits is not None:
            wanted["logits"] = (self.logits.shape, (n, steps, len(self.action_names)))
        for name, (got, should) in wanted.items():
            if tuple(got) != tuple(should):
                raise SettingError(f"The panel's {name} have shape {tuple(got)}; it must be {tuple(should)}.")
        if not ((self.lengths >= 1) & (self.lengths <= steps)).all():
            raise SettingError(f"The panel's lengths must be 1 to {steps}.")
        for name, (base, _) in self.maps.items():
            if len(base) != len(self.background):
                raise SettingError(
                    f"The panel's map {name} has {len(base)} base points; `base` has {len(self.background)}."
                )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def real(self) -> BoolArray:
        """Which steps are no padding, ``[n, T]``."""
        real: BoolArray = np.arange(self.loadings.shape[1])[None] < self.lengths[:, None]
        return real

    @property
    def background(self) -> FloatArray:
        """The scatter's grey points, ``[N, k]``: `base`, or at most 2,000 steps of the samples."""
        if self.base is not None:
            return self.base
        own = self.loadings[self.real]
        some: FloatArray = own[np.unique(np.linspace(0, len(own) - 1, 2000).astype(int))]
        return some

    @property
    def outcome_names(self) -> list[str]:
        """The different outcomes, sorted."""
        return sorted({outcome for outcome in self.outcomes if outcome})

    def names_of(self, clustering: str) -> list[str]:
        """Return the names of the labels of ``clustering``."""
        count = int(self.labels[clustering].max(initial=-1)) + 1
        names = [str(name) for name in self.label_names.get(clustering, ())]
        return [*names, *(str(number) for number in range(len(names), count))]
