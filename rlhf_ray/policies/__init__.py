"""Policy networks in plain torch, without Ray: encoder, memory, actor and critic."""

from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape

__all__ = ["ActorCriticNetwork", "PolicyShape"]
