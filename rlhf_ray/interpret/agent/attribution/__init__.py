"""Attribution through time: what a value, an action or a direction depends on, now or some steps on.

In a notebook::

    moments = draw_moments(agent, episodes, 32, rng, context=world.context, ahead=0)
    question = Question(agent, value(), steps=4, world=world, estimator="straight_through")
    smoothgrad(question, moments, Reference.of(question, moments)).maps["frame"]
    ways(question, moments).shares
"""
