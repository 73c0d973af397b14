"""Tables of effects: what a reward or an agent uses, measured by exchanging, editing and removing it."""
