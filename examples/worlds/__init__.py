"""Worlds made for asking: small games whose causes are known, for tools that look into rewards and agents.

Copy this folder beside your script and import it, or name it: `rlhf-ray train worlds/cuerun.json --true-reward`,
``make_batch("worlds:rlhf_ray/CueRun-v0", 64)``. It registers

* ``rlhf_ray/MiniRun-v0``, ``rlhf_ray/CueRun-v0``, ``rlhf_ray/StaticBounce-v0``: worlds of levels that are batches themselves, with
  concepts, masks, edits and states;
* ``rlhf_ray/PlantedImage-v0``, ``rlhf_ray/ScoreShortcut-v0``, ``rlhf_ray/DotsAndDistances-v0``: images whose rewarded region is
  known to the pixel.
"""

from __future__ import annotations

import gymnasium

from rlhf_ray.envs.batches import BATCHES

from .cuerun import CueRunBatch
from .minirun import MiniRunBatch
from .static_bounce import StaticBounceBatch

WORLDS = {"MiniRun": ("minirun", 60), "CueRun": ("cuerun", 40), "StaticBounce": ("static_bounce", 60)}
IMAGES = {
    "PlantedImage": ("planted", 50),
    "ScoreShortcut": ("score_shortcut", 50),
    "DotsAndDistances": ("dots", 100),
}
"""The file of each, and the steps of its episodes."""

for _name, (_file, _steps) in {**WORLDS, **IMAGES}.items():
    _entry = f"{__name__}.{_file}:{_name}"
    _together = f"{_entry}VectorEnv" if _name in WORLDS else None
    if (_id := f"rlhf_ray/{_name}-v0") not in gymnasium.registry:
        gymnasium.register(_id, _entry, max_episode_steps=_steps, vector_entry_point=_together)
for _batch in (MiniRunBatch, CueRunBatch, StaticBounceBatch):
    BATCHES.setdefault(_batch.name, _batch)
