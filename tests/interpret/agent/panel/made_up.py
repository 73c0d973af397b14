"""Panels of a made-up runner who jumps over saws."""

import numpy as np

from rlhf_ray.interpret.agent.panel import PanelData, PanelPair, PanelRollout, PanelSaliency

ACTIONS = ("stay", "run", "jump", "jump right")
SKY, GROUND, HERO, SAW, COIN = (190, 215, 235), (120, 90, 60), (40, 60, 160), (200, 40, 40), (240, 190, 40)


def runner(positions, heights, saws, side=16):
    """Frames ``[…, side, side, 3]``: a hero at the left third of a world that scrolls below it."""
    shape = positions.shape
    frames = np.empty((*shape, side, side, 3), np.uint8)
    frames[:] = SKY
    frames[..., -4:, :, :] = GROUND
    for where in np.ndindex(shape):
        ahead = int(saws[where] - positions[where]) + side // 3
        if 0 <= ahead < side - 1:
            frames[(*where, slice(side - 6, side - 4), slice(ahead, ahead + 2))] = SAW
        top = side - 7 - int(heights[where])
        frames[(*where, slice(max(0, top), top + 3), slice(side // 3, side // 3 + 2))] = HERO
        frames[(*where, slice(2, 4), slice(side - 3, side - 1))] = COIN
    return frames


def made_up(n=60, steps=12, k=8, side=16, quantities=("value", "jump log-odds"), pairs=True, seed=0):
    """A panel of ``n`` samples; all its arrays are seeded."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(max(1, steps - 4), steps + 1, n)
    lengths[0] = steps
    time = np.arange(steps)
    saws = rng.integers(2, 14, (n, 1)) + np.zeros((n, steps), int)
    positions = np.broadcast_to(time, (n, steps))
    distance = saws - positions
    heights = np.clip(3 - np.abs(distance), 0, 3) * 1.6
    loadings = rng.normal(0, 0.5, (n, steps, k)).cumsum(1) * 0.6 + rng.normal(0, 1, (n, 1, k))
    loadings[..., 0] = np.tanh((4 - distance) / 3) * 2 + rng.normal(0, 0.15, (n, steps))
    logits = rng.normal(0, 0.4, (n, steps, len(ACTIONS)))
    logits[..., 1] += 2
    logits[..., 3] += 4 * ((distance < 4) & (distance > 0))
    actions = logits.argmax(-1)
    gradients = {q: rng.standard_t(3, (n, steps, k)) * 0.1 for q in quantities}
    if n > 3:
        gradients[quantities[0]][3] = np.nan
    rows = np.arange(0, min(n, 24))
    frames = runner(positions, heights, saws, side)
    saw = (frames[rows] == SAW).all(-1)
    maps = np.where(saw, -1.0, 0) + rng.normal(0, 0.08, saw.shape) + 0.7 * (frames[rows] == HERO).all(-1)
    paths = rng.dirichlet((3, 2, 1), (n, steps)) * rng.choice([1, 1, 1, -1], (n, steps, 3))
    some = loadings.reshape(-1, k)[rng.integers(0, n * steps, min(1500, n * steps))]
    turn = np.linalg.qr(rng.normal(size=(k, k)))[0][:, :2]
    outcomes = [("saw", "coin", "timeout", "")[int(which)] for which in rng.integers(0, 4, n)]
    sides = pairs and [
        PanelRollout(frames[0], actions[0], (loadings[0, :, 0] + 2), "coin"),
        PanelRollout(
            runner(positions[0], np.zeros(steps), saws[0], side)[: steps - 3],
            np.ones(steps - 3, int),
            np.linspace(4, 0.5, steps - 3),
            "saw",
        ),
    ]
    return PanelData(
        title="MiniRun: the agent's internals",
        observations=frames,
        lengths=lengths,
        actions=actions,
        action_names=ACTIONS,
        values=loadings[..., 0] + 5,
        rewards=(time == lengths[:, None] - 1) * np.array([10.0 * (one == "coin") for one in outcomes])[:, None],
        loadings=loadings,
        components=[f"component {number + 1}" for number in range(k)],
        logits=logits,
        gradients=gradients,
        saliency={q: PanelSaliency(rows, maps * sign) for q, sign in zip(quantities[:2], (1, -1), strict=True)},
        paths={quantities[0]: paths},
        path_names=("memory", "world", "current frame"),
        labels={"Behaviour": np.where(distance < 4, 1, 0) + 2 * (distance < 0) * (distance < 4) // 2},
        label_names={"Behaviour": ("run", "jump the saw", "land")},
        outcomes=outcomes,
        levels=np.arange(n) + 1000,
        base=some,
        maps={"t-SNE": (some @ turn, loadings @ turn)},
        pairs=[
            PanelPair("saw direction ablated", "Without the direction, the agent runs on.", False, *sides, sample=0),
            PanelPair("saw direction ablated", "The same, imagined.", True, *sides, sample=0),
        ]
        if pairs
        else (),
        horizon=6,
        notes={"Agent": "minirun, 5c1f…", "Estimator": "straight through"},
    )
