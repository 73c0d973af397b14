"""The ring's actors: one file each, a plain class that Ray runs in its own process. `ring` connects them."""

if __name__ != "rlhf_ray.actors":  # a second copy of each module, whose classes are not the first's
    raise ImportError(
        f"{__name__} is a link to rlhf_ray.actors for readers of the folder list: import rlhf_ray.actors."
    )
