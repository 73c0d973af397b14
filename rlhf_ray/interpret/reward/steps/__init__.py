"""The steps that examine a reward: one file each, which ends with its `rlhf_ray.study.Step`."""

NAMES = (
    "distances",
    "overview",
    "counterfactuals",
    "shortcuts",
    "incentive",
    "by_time",
    "attribution",
    "calibration",
    "heatmap",
    "examples",
    "visualisation",
    "inside",
    "consistency",
    "preprocess",
)
"""The steps, in the order of the page; each comes after those that it needs."""

CATALOGUE = {name: f"{__name__}.{name}:STEP" for name in NAMES}
