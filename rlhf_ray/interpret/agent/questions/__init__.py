"""Questions about an agent: what a value, an action or a direction depends on, now or some steps on.

In a notebook::

    moments = draw_moments(agent, episodes, 32, rng, context=world.context, ahead=0)
    question = AgentQuestion(agent, value(), steps=4, world=world).against(moments)
    METHODS.make("smoothgrad").attribute(question, moments)["frame"]
"""

from rlhf_ray.interpret.agent.questions.quantities import Quantity
from rlhf_ray.interpret.agent.questions.question import SOURCES, AgentQuestion, Source

__all__ = ["SOURCES", "AgentQuestion", "Quantity", "Source"]
