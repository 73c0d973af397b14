"""The steps that examine an agent: one file each, which ends with its `rlhf_ray.study.Step`."""

NAMES = (
    "recording",
    "world_model",
    "quality",
    "concepts",
    "bases",
    "clusters",
    "behaviours",
    "dynamics",
    "attribution",
    "story",
    "interventions",
    "counterfactuals",
    "hidden",
    "panel",
)
"""The steps, in the order of the page; each comes after those that it needs."""

CATALOGUE = {name: f"{__name__}.{name}:STEP" for name in NAMES}
