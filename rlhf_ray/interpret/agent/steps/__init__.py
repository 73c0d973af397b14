"""The steps that examine an agent: one file each, which ends with its `rlhf_ray.study.Step`."""

NAMES = (
    "header",
    "effects",
    "concepts",
    "recording",
    "world_model",
    "bases",
    "clusters",
    "behaviours",
    "dynamics",
    "attribution",
    "panel",
)
"""The steps, in the order of the page."""

CATALOGUE = {name: f"{__name__}.{name}:STEP" for name in NAMES}
