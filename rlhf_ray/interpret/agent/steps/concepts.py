"""What the agent remembers: what its hidden state tells of the world's state, since how many steps, and the row that removes it."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_ray.interpret.agent import concepts
from rlhf_ray.interpret.agent.concepts import DecodedConcept
from rlhf_ray.interpret.agent.steps.effects import Uses
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "concepts", "What it remembers"

STEPS, FEWEST = 2500, 500
LAGS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Steps ago of which a concept is read, as far as episodes reach."""

CAPTION = """\
What the agent's {site} tells of each concept, on episodes that nothing was fitted to: AUC (0.5: nothing) or R² (0: \
nothing), with the interval over folds, beside shuffled episodes' labels and one frame. Steps ago: the farthest back \
that it can be read, of {lags}. Removed: the share of levels in which any action changes without its direction, from \
the table of effects."""


@dataclass(frozen=True)
class Concepts:
    """What the step finds: where concepts are read, at how many steps, and how well each is."""

    site: str
    steps: int
    concepts: list[DecodedConcept]


def run(context: AgentContext) -> Section:
    """Probe for each concept, now and some steps ago."""
    subject, episodes = context.subject, recorded(context)
    steps = max(FEWEST, round(STEPS * min(1.0, subject.effort)))
    inside = concepts.samples(subject.agent, episodes, most=steps, seed=subject.seed)
    library = concepts.library(episodes, subject.action_names)
    frames = concepts.frames(episodes, inside)
    context.say(f"probes for {len(library)} concepts")
    decoded = concepts.decode(
        inside, library, frames, [lag for lag in LAGS if lag < episodes.lengths.mean()], subject.seed
    )
    figures, uses = Concepts(subject.site_name, len(inside), decoded), context.figures("effects", Uses)
    rows = []
    for one in decoded:
        row = None if uses is None else uses.actions.get(one.concept)
        changed = "–" if row is None or uses is None else f"{row.text()} (control {uses.controls[one.concept]:.2f})"
        frame = "–" if one.frame is None else f"{one.frame:z.2f}"
        rows.append([one.concept, one.measure, one.score.text(), one.shuffled.text(), frame, one.since, changed])
    caption = CAPTION.format(site=subject.site_name, lags=", ".join(map(str, LAGS)))
    columns = ["concept", "measure", "hidden state", "shuffled", "one frame", "steps ago", "removed"]
    notes = () if decoded else ("The environment says nothing that varies about its state.",)
    table = [Table(columns, rows, caption)] if rows else []
    return Section(NAME, TITLE, (), (), table, (), notes, values_of(figures))


STEP = Step(NAME, TITLE, run, needs=("recording", "effects"), why_not=nothing_inside)
