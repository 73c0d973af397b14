"""Collecting what a panel shows: samples of recorded episodes, the components of a basis, and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.neighbors import NearestNeighbors

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Stretches
from rlhf_ray.agents.replay import values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.embeddings import tsne
from rlhf_ray.interpret.agent.panel.data import PanelData, PanelPair
from rlhf_ray.interpret.agent.panel.pairs import end_of
from rlhf_ray.interpret.agent.panel.samples import SOURCES, actions_of, doubted, effects_of
from rlhf_ray.interpret.agent.saliency import Faithful
from rlhf_ray.interpret.directions import Directions

BASE = 1200
"""Grey points of the scatter."""

NEIGHBOURS = 3
"""A sample's step lies on the map in the middle of as many nearest grey points."""

MOST_CONCEPTS = 16
"""Concepts that can be filtered by."""


@dataclass(frozen=True)
class PanelExtras:
    """What other tools found out.

    Attributes:
        pairs: rollouts side by side.
        labels: clusters of each step of the episodes, ``[episodes, T]`` by name of the clustering, and their names.
        faithful: which maps of a step's own frame are faithful; None: nothing is doubted.
        horizon: number of simulated steps that can be trusted.
        notes: for the end of the page.
    """

    pairs: Sequence[PanelPair] = ()
    labels: Mapping[str, tuple[IntArray, Sequence[str]]] = field(default_factory=dict)
    faithful: Faithful | None = None
    horizon: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def collect(
    agent: Agent,
    episodes: Episodes,
    pieces: Stretches,
    basis: Directions,
    site: str,
    rng: np.random.Generator,
    *,
    title: str,
    seed: int = 0,
    action_names: Sequence[str] = (),
    extras: PanelExtras | None = None,
) -> PanelData:
    """Collect a panel.

    Args:
        agent: the agent.
        episodes: recorded ones, with observations.
        pieces: the samples.
        basis: the components, fitted at ``site``.
        site: the agent's memory, or a layer.
        rng: draws the grey points.
        title: the page's heading.
        seed: seeds the map.
        action_names: of Discrete actions.
        extras: what other tools found out.
    """
    extras = extras or PanelExtras()
    inside = values_at(agent, episodes, site)
    scores = _scores(basis, inside)
    effects = effects_of(agent, episodes, pieces, basis, site)
    if extras.faithful is not None:
        effects = doubted(effects, extras.faithful)
    actions, names = actions_of(agent, episodes.actions, action_names)
    discrete = actions.ndim == 2
    some = np.sort(rng.permutation(int(episodes.lengths.sum()))[:BASE])
    labels = {**_concepts(episodes), **extras.labels}
    return PanelData(
        title=title,
        feature_names=feature_names(agent.observation_space),
        observations=pieces.window(episodes.observations),
        lengths=pieces.lengths,
        actions=pieces.window(actions),
        action_names=names,
        values=pieces.window(episodes.values),
        rewards=pieces.window(episodes.rewards),
        loadings=pieces.window(scores),
        components=list(basis.names),
        logits=pieces.window(episodes.logits) if discrete else None,
        gradients=effects.gradients,
        saliency=effects.saliency,
        paths=effects.paths,
        path_names=SOURCES,
        labels={name: pieces.window(of) for name, (of, _) in labels.items()},
        label_names={name: words for name, (_, words) in labels.items()},
        outcomes=[end_of(episodes, int(row)) for row in pieces.rows],
        levels=episodes.levels[pieces.rows],
        base=scores[episodes.real][some],
        maps={"t-SNE": _map(inside[episodes.real][some], pieces.window(inside), seed)},
        pairs=extras.pairs,
        horizon=extras.horizon,
        notes=extras.notes,
    )


def _scores(basis: Directions, inside: FloatArray) -> FloatArray:
    """Scores ``[n, T, k]`` of what is inside, ``[n, T, size]``."""
    flat = basis.encode(inside.reshape(-1, inside.shape[-1]).astype(np.float64))
    return flat.reshape(*inside.shape[:2], -1)


def _concepts(episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """What the environment says yes or no to, as labels."""
    steps = episodes.actions.shape[1]
    yes_or_no = {
        name: (of[:, :steps].astype(np.int64), ("no", "yes"))
        for name, of in sorted(episodes.states.items())
        if of.dtype == bool and of.ndim == 2 and of[:, :steps].any() and not of[:, :steps].all()
    }
    return dict(list(yes_or_no.items())[:MOST_CONCEPTS])


def _map(base: FloatArray, own: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """t-SNE of the grey points ``[N, size]``, and where the samples' steps ``[n, T, size]`` lie between them."""
    places = tsne(base, seed)
    nearest = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(base))).fit(base)
    found = nearest.kneighbors(own.reshape(-1, own.shape[-1]), return_distance=False)
    return places, places[found].mean(1).reshape(*own.shape[:2], 2)
