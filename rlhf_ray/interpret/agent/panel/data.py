"""PanelData: what a panel shows, as padded arrays; collected from recorded episodes, the components of a basis, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes, Stretches
from rlhf_ray.agents.play import values_at
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.questions import NOW, Faithful, log_odds
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.policies.actions import to_policy_actions

BASE = 1200
"""Grey points of the scatter."""
NEIGHBOURS = 3
"""A sample's step lies on the map in the middle of as many nearest grey points."""
MOST_CONCEPTS = 16
"""Concepts that can be filtered by."""
BATCH = 256
"""Steps whose gradients are computed at a time."""
MAP_BYTES = 8 << 20
"""Bytes of all saliency maps together, one for each pixel: as many samples have maps as fit."""
VALUE, LIKELIEST = "the value", "the likeliest action"
SOURCES = ("what it remembers", "what it sees now")
Reader = Callable[[Tensor, Tensor], Tensor]
"""Reads a quantity ``[n]`` off value ``[n]`` and logits ``[n, outputs]``."""


@dataclass(frozen=True)
class PanelSaliency:
    """Saliency maps of one quantity for some of the samples."""

    rows: IntArray  # the samples, ``[m]``
    # signed, ``[m, T, height, width]`` for images, ``[m, T, features]`` for vectors. NaN where not computed.
    maps: FloatArray
    doubt: str = ""  # why not to trust them: they are drawn crossed out; empty if they are faithful


@dataclass(frozen=True)
class PanelRollout:
    """One side of a pair."""

    observations: Array  # ``[T, …]``, as those of `PanelData`
    actions: Array  # ``[T]`` for Discrete, else ``[T, dimensions]``
    values: FloatArray  # ``[T]``
    outcome: str = ""  # how it ended; empty if it goes on or nobody knows


@dataclass(frozen=True)
class PanelPair:
    """Two rollouts from the same start: A without, B with an intervention or an edit of the level."""

    name: str  # what was changed in B, in a few words
    about: str  # what to look at, one sentence
    simulated: bool  # the rollouts come from the world model, not from the environment
    # a, b: the rollouts
    a: PanelRollout
    b: PanelRollout
    sample: int | None = None  # the sample that they start from; None if it is not in the panel


@dataclass(frozen=True)
class PanelData:
    """``n`` samples of at most ``T`` steps with ``k`` components. Steps after a sample's length are padding."""

    title: str  # heading of the page
    observations: Array  # ``[n, T, height, width, channels]`` uint8 for images, ``[n, T, features]`` for vectors
    lengths: IntArray  # steps of each sample, ``[n]``, at least 1
    actions: Array  # ``[n, T]`` for Discrete, else ``[n, T, dimensions]``
    action_names: Sequence[str]  # of the Discrete actions, or of the dimensions
    # values, rewards: ``[n, T]``
    values: FloatArray
    rewards: FloatArray
    loadings: FloatArray  # scores of the components, ``[n, T, k]``
    components: Sequence[str]  # their names
    logits: FloatArray | None = None  # of Discrete actions, ``[n, T, actions]``; None for others
    # of each quantity by the components' scores, ``[n, T, k]``. NaN where not computed.
    gradients: Mapping[str, FloatArray] = field(default_factory=dict)
    saliency: Mapping[str, PanelSaliency] = field(default_factory=dict)  # maps of each quantity
    # share of each path in the gradient of each quantity, ``[n, T, paths]``. NaN where not computed.
    paths: Mapping[str, FloatArray] = field(default_factory=dict)
    path_names: Sequence[str] = ()  # of the paths, for example memory, world, frame
    # clusters or behaviours, by the name of the clustering, ``[n, T]``; -1 for none
    labels: Mapping[str, IntArray] = field(default_factory=dict)
    # names of the labels of each clustering; numbers if missing
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outcomes: Sequence[str] = ()  # how each sample ended, ``[n]``; empty if it goes on
    levels: IntArray | None = None  # seed of each sample's level, ``[n]``
    # scores ``[N, k]`` of the grey points behind a sample's path; default: some of the samples' own
    base: FloatArray | None = None
    # two-dimensional maps (t-SNE, UMAP) by name: points ``[N, 2]`` of `base` and ``[n, T, 2]`` of the samples
    maps: Mapping[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    pairs: Sequence[PanelPair] = ()  # rollouts side by side
    # number of simulated steps that can be trusted; later ones are greyed. None: no limit is known.
    horizon: int | None = None
    simulated: bool = False  # the samples come from the world model, so that the horizon applies to them as well
    feature_names: Sequence[str] = ()  # of vector observations
    # what the panel was made from, shown at its end: agent, estimator, …
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
            **{f"base of map {name}": (base.shape, (len(self.background), 2)) for name, (base, _) in self.maps.items()},
        }
        if self.logits is not None:
            wanted["logits"] = (self.logits.shape, (n, steps, len(self.action_names)))
        for name, (got, should) in wanted.items():
            if tuple(got) != tuple(should):
                raise SettingError(f"The panel's {name} have shape {tuple(got)}; it must be {tuple(should)}.")
        if not ((self.lengths >= 1) & (self.lengths <= steps)).all():
            raise SettingError(f"The panel's lengths must be 1 to {steps}.")

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def real(self) -> BoolArray:
        """Which steps are no padding, ``[n, T]``."""
        return np.asarray(np.arange(self.loadings.shape[1])[None] < self.lengths[:, None])

    @property
    def background(self) -> FloatArray:
        """The scatter's grey points, ``[N, k]``: `base`, or at most 2,000 steps of the samples."""
        if self.base is not None:
            return self.base
        own = self.loadings[self.real]
        return np.asarray(own[np.unique(np.linspace(0, len(own) - 1, 2000).astype(int))])

    @property
    def outcome_names(self) -> list[str]:
        """The different outcomes, sorted."""
        return sorted({outcome for outcome in self.outcomes if outcome})

    def names_of(self, clustering: str) -> list[str]:
        """Return the names of the labels of ``clustering``."""
        count = int(self.labels[clustering].max(initial=-1)) + 1
        names = [str(name) for name in self.label_names.get(clustering, ())]
        return [*names, *(str(number) for number in range(len(names), count))]


def collect(
    agent: Agent,
    episodes: Episodes,
    pieces: Stretches,
    basis: Directions,
    site: str,
    rng: np.random.Generator,
    *,
    action_names: Sequence[str] = (),
    labels: Mapping[str, tuple[IntArray, Sequence[str]]] = {},
    maps: Mapping[str, Callable[[FloatArray], FloatArray]] = {},
    faithful: Faithful | None = None,
    **more: Any,
) -> PanelData:
    """Collect a panel of ``pieces`` of recorded episodes, and of the components of a basis that was fitted at ``site``.

    ``labels`` are clusters of each step of the episodes, ``[episodes, T]`` by name of the clustering, with their names; ``maps``
    place ``[N, size]`` on maps ``[N, 2]``; ``faithful`` tells which maps of a step's own frame are (None: nothing is doubted).
    ``more`` are further fields of `PanelData`: title, pairs, horizon, notes. ``rng`` draws the grey points.
    """
    inside = values_at(agent, episodes, site)
    scores = basis.encode(inside.reshape(-1, inside.shape[-1]).astype(np.float64)).reshape(*inside.shape[:2], -1)
    actions, names = actions_of(agent, episodes.actions, action_names)
    some = np.sort(rng.permutation(int(episodes.lengths.sum()))[:BASE])
    base, labels = inside[episodes.real][some], {**_concepts(episodes), **labels}
    return PanelData(
        feature_names=feature_names(agent.observation_space),
        observations=pieces.window(episodes.observations),
        lengths=pieces.lengths,
        actions=pieces.window(actions),
        action_names=names,
        values=pieces.window(episodes.values),
        rewards=pieces.window(episodes.rewards),
        loadings=pieces.window(scores),
        components=list(basis.names),
        logits=pieces.window(episodes.logits) if actions.ndim == 2 else None,
        path_names=SOURCES,
        labels={name: pieces.window(of) for name, (of, _) in labels.items()},
        label_names={name: words for name, (_, words) in labels.items()},
        outcomes=[end_of(episodes, int(row)) for row in pieces.rows],
        levels=episodes.levels[pieces.rows],
        base=scores[episodes.real][some],
        maps={name: _map(made(base), base, pieces.window(inside)) for name, made in maps.items()},
        **effects_of(agent, episodes, pieces, basis, site, faithful),
        **more,
    )


def _concepts(episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """What the environment says yes or no to, as labels."""
    steps = episodes.actions.shape[1]
    yes_or_no = {
        name: (of[:, :steps].astype(np.int64), ("no", "yes"))
        for name, of in sorted(episodes.states.items())
        if of.dtype == bool and of.ndim == 2 and of[:, :steps].any() and not of[:, :steps].all()
    }
    return dict(list(yes_or_no.items())[:MOST_CONCEPTS])


def _map(places: FloatArray, base: FloatArray, own: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the places of the grey points ``[N, size]``, and where the samples' steps ``[n, T, size]`` lie between them."""
    nearest = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(base))).fit(base)
    found = nearest.kneighbors(own.reshape(-1, own.shape[-1]), return_distance=False)
    return places, places[found].mean(1).reshape(*own.shape[:2], 2)


def pieces_of(episodes: Episodes, count: int, steps: int, rng: np.random.Generator) -> Stretches:
    """Cut episodes into pieces of ``steps`` steps, and draw ``count`` of them."""
    every = [(row, start) for row, length in enumerate(episodes.lengths) for start in range(0, int(length), steps)]
    some = np.array([every[one] for one in np.sort(rng.permutation(len(every))[:count])])
    rows, starts = some[:, 0], some[:, 1]
    return Stretches(rows, starts, np.minimum(steps, episodes.lengths[rows] - starts), steps)


def effects_of(
    agent: Agent, episodes: Episodes, pieces: Stretches, basis: Directions, site: str, faithful: Faithful | None
) -> dict[str, Any]:
    """Return what value and likeliest action depend on at each step of the samples, to first order, as fields of `PanelData`.

    Saliency, of the first samples: how much each pixel or feature raises the quantity by not being as it is on average. Paths: the
    same for all that the agent remembers, and all that it sees now, ``[n, T, 2]``.
    """
    n, steps, quantities = len(pieces.rows), pieces.most, _quantities(agent)
    frames = episodes.observations.shape[2:]
    shape = frames[:-1] if is_image(agent.observation_space) else (int(np.prod(frames)),)
    mapped = min(n, max(1, MAP_BYTES // (steps * len(quantities) * int(np.prod(shape)))))
    at, when = np.nonzero(np.arange(steps)[None] < pieces.lengths[:, None])
    rows, times = pieces.rows[at], pieces.steps[at] + when
    some = np.linspace(0, len(rows) - 1, min(len(rows), 1000)).astype(int)
    typical = torch.as_tensor(episodes.observations[rows[some], times[some]].astype(np.float32).mean(0))
    usual = torch.as_tensor(episodes.memory[rows[some], times[some]].mean(0))

    def unknown(*shape: int) -> dict[str, FloatArray]:
        return {name: np.full(shape, np.nan, np.float32) for name in quantities}

    gradients, paths, maps = unknown(n, steps, len(basis)), unknown(n, steps, 2), unknown(mapped, steps, *shape)
    for first in range(0, len(rows), BATCH):
        here = slice(first, first + BATCH)
        frame = torch.as_tensor(episodes.observations[rows[here], times[here]].astype(np.float32)).requires_grad_()
        memory = torch.as_tensor(episodes.memory[rows[here], times[here]]).requires_grad_()
        caught: dict[str, Tensor] = {}

        def catch(values: Tensor, caught: dict[str, Tensor] = caught) -> Tensor:
            caught["site"] = values
            return values

        step = agent.step(frame, memory, edits={site: catch})
        sources = caught["site"], frame, memory
        for name, (_, read) in quantities.items():
            target = read(step.value, step.logits).sum()
            found = torch.autograd.grad(target, sources, retain_graph=True, allow_unused=True)
            inside, seen, remembered = (
                torch.zeros_like(of) if part is None else part for part, of in zip(found, sources, strict=True)
            )
            flat = inside.reshape(*inside.shape[:2], -1).sum(-1)  # positions of an image move together
            gradients[name][at[here], when[here]] = basis.gradient(flat.numpy().astype(np.float64))
            by_pixel = ((frame.detach() - typical) * seen).numpy()
            by_unit = ((memory.detach() - usual) * remembered).numpy()
            both = by_unit.sum(1), by_pixel.reshape(len(by_pixel), -1).sum(1)
            paths[name][at[here], when[here]] = np.stack(both, 1)
            if len(shape) == 2:
                by_pixel = by_pixel.sum(-1)
            within = at[here] < mapped
            maps[name][at[here][within], when[here][within]] = by_pixel.reshape(len(by_pixel), *shape)[within]
    doubts = {name: "" if faithful is None else faithful.doubt(called, NOW) for name, (called, _) in quantities.items()}
    saliency = {name: PanelSaliency(np.arange(mapped), of, doubts[name]) for name, of in maps.items()}
    return {"gradients": gradients, "saliency": saliency, "paths": paths if agent.memory_size else {}}


def _quantities(agent: Agent) -> dict[str, tuple[str, Reader]]:
    """What attribution calls each quantity, and how to read it off value and logits."""
    space = agent.action_space
    found: dict[str, tuple[str, Reader]] = {VALUE: ("value", lambda value, logits: value)}
    if not isinstance(space, gym.spaces.Discrete):
        for at, name in enumerate(_dimensions(space)[:4]):
            found[name] = f"mean_{at}", lambda value, logits, at=at: logits[:, at]  # type: ignore[misc]
    elif int(space.n) > 1:
        found[LIKELIEST] = "action", lambda value, logits: log_odds(logits, logits)
    return found


def _dimensions(space: gym.Space[Any]) -> list[str]:
    return [f"action {number}" for number in range(int(np.prod(space.shape or (1,))))]


def actions_of(agent: Agent, actions: Array, names: Sequence[str]) -> tuple[Array, Sequence[str]]:
    """Return actions ``[…]`` of Discrete spaces from 0, else policy actions ``[…, dimensions]``, and their names."""
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete):
        count = int(space.n)
        return actions - int(space.start), names if len(names) == count else [str(one) for one in range(count)]
    lead = actions.shape[: actions.ndim - len(space.shape or ())]
    flat = to_policy_actions(actions.reshape(-1, *(space.shape or ())), space)
    return np.asarray(flat).reshape(*lead, -1), _dimensions(space)


def end_of(episodes: Episodes, row: int) -> str:
    """Return how an episode ended, in a word; empty if it was cut."""
    return "" if (end := episodes.ends[row]) == "cut" else end
