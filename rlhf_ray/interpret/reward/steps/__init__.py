"""The steps that examine a reward: one file each, which ends with its `rlhf_ray.study.Step`."""

NAMES = (
    "header",
    "effects",
    "counterfactuals",
    "by_time",
    "examples",
    "heatmap",
    "attribution",
    "visualisation",
    "inside",
    "preprocess",
)
"""The steps, in the order of the page; each comes after those that it needs."""

CATALOGUE = {name: f"{__name__}.{name}:STEP" for name in NAMES}
