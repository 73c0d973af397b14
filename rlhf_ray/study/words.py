"""A step's words: its sentences, checks, tables and captions are templates in a TOML file beside its module.

A step computes figures and chooses what to tell; the file holds how it is told, in Jinja's language::

    title = "What moves the reward"

    [statements.cause]
    kind = "rewards"
    about = "{{ cause.name }}"
    text = "It looks at {{ cause.name }}: exchanging that moves the reward by {{ cause.effect.moves | share }}."
    line = "LOOKS AT {{ cause.name }}"
    figure = "exchanged: {{ cause.effect.moves | share }}"

    [checks.varies]
    name = "the reward varies"
    bound = "> 0"
    failed = "The reward is the same for every step."
    unknown = "There are no steps."

    [tables.causes]
    columns = ["exchanged", "moves the reward by"]
    caption = "Causes among the regions."

    [pictures]
    effects = "How much the exchange of each region moves the reward."

    [texts]
    no_steps = "There are no steps to look at."
    chance = "(chance: {{ chance | fmt('.2f') }})"

``line`` and ``figure`` are what the study's first screen shows of a statement (see `rlhf_ray.study.screen`); ``list = "IGNORES"``
puts the line in that list. A template includes a text by ``{% include 'chance' %}``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from rlhf_ray.data.plain import plain
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Picture, Section, Stance, Statement, Strength, Table

STANCES: dict[str, Stance] = {"rewards": "yes", "uses": "yes", "ignores": "no"}
"""Stances of the kinds of statements; others have none unless their words name one."""


class Words:
    """The words of one step.

    Args:
        module: the step's module file, ``__file__``; its words are in the ``.toml`` of the same name.

    Attributes:
        name: the step's name, that of the file.
        title: its title.
    """

    def __init__(self, module: str):
        path = Path(module).with_suffix(".toml")
        self._words: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        self.name, self.title = path.stem, str(self._words["title"])
        texts = jinja2.DictLoader(self._words.get("texts", {}))
        self._environment = jinja2.Environment(loader=texts, undefined=jinja2.StrictUndefined)
        self._environment.filters |= _FILTERS

    def text(self, key: str, **values: Any) -> str:
        """Return a text of ``[texts]``."""
        return self._environment.get_template(key).render(values)

    def statement(self, key: str, weight: float = 0.0, strength: Strength = "", /, **values: Any) -> Statement:
        """Return a statement of ``[statements.KEY]``; ``strength``: of its evidence."""
        words = self._words["statements"][key]
        parts = (self._render(words.get(name, ""), values) for name in ("text", "about", "line", "figure", "changes"))
        text, about, line, figure, changes = parts
        stance, key = words.get("stance", STANCES.get(words["kind"], "")), f"{self.name}.{key}"
        return Statement(
            words["kind"],
            text,
            float(weight),
            about,
            key,
            stance,
            line,
            figure,
            strength,
            words.get("list", ""),
            changes,
        )

    def check(self, key: str, passed: bool | None, value: float | None = None, **values: Any) -> Check:
        """Return a check of ``[checks.KEY]``, which says ``failed``, or ``unknown`` if it could not be made."""
        words = self._words["checks"][key]
        values |= {"value": value}
        says = "" if passed else words.get("unknown" if passed is None else "failed", "")
        texts = (words["name"], words.get("bound", ""), says, words.get("about", ""))
        name, bound, says, about = (self._render(text, values) for text in texts)
        return Check(
            name,
            passed,
            value,
            bound,
            says,
            f"{self.name}.{key}",
            about,
            "" if passed is False else words.get("absent", ""),
        )

    def table(self, key: str, rows: Iterable[Sequence[Any]], columns: Sequence[str] = (), **values: Any) -> Table:
        """Return a table of ``[tables.KEY]``; ``columns``: further ones, which the data name."""
        words = self._words["tables"][key]
        return Table([*words["columns"], *columns], list(rows), self._render(words.get("caption", ""), values))

    def picture(self, key: str, image: bytes, file: str = "", **values: Any) -> Picture:
        """Return a picture with its caption of ``[pictures]``; ``file``: its name, if that is not ``key``."""
        return Picture(file or key, image, self._render(self._words["pictures"][key], values))

    def skipped(self, key: str, **values: Any) -> Section:
        """Return the section of a step that turned out not to apply, for the reason ``[texts]`` ``key``."""
        return Section(self.name, self.title, skipped=self.text(key, **values))

    def section(
        self,
        statements: Iterable[Statement] = (),
        checks: Iterable[Check] = (),
        tables: Iterable[Table] = (),
        pictures: Iterable[Picture] = (),
        figures: Any = (),
    ) -> Section:
        """Return the step's section. ``figures``: the step's, which become its values in the JSON twin."""
        values = plain(values_of(figures)) if figures else {}
        return Section(self.name, self.title, [*statements], [*checks], [*tables], [*pictures], values)

    def _render(self, template: str, values: dict[str, Any]) -> str:
        return self._environment.from_string(template).render(values) if "{" in template else template


def share(value: float) -> str:
    """Write a share as per cent, with a decimal where it is small."""
    return f"{100 * value:.1f} %" if value < 0.095 else f"{100 * value:.0f} %"


def percent(value: float, digits: int = 0) -> str:
    """Write a share as per cent with ``digits`` decimals."""
    return f"{100 * value:.{digits}f} %"


def number(value: float) -> str:
    """Write a number: a whole one in full, others with four digits, with commas at thousands; a dash for nothing."""
    if not math.isfinite(value):
        return "–"
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{value:,.{'0f' if whole else '4g'}}".replace("-", "−")


def capital(text: str) -> str:
    """Begin with a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """Join names: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: "1 step", "3 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def estimate(value: MeanEstimate | None, digits: int = 2) -> str:
    """Write a mean with its interval; a dash for None."""
    return "–" if value is None else value.text(digits).replace("-", "\N{MINUS SIGN}")


def over(figure: Any, digits: int = 2) -> str:
    """Write a figure with the interval that it has as ``low`` and ``high``, NaN without one."""
    value, low, high = (
        f"{end:z.{digits}f}".replace("-", "\N{MINUS SIGN}") for end in (figure.value, figure.low, figure.high)
    )
    return value if math.isnan(figure.low) else f"{value} [{low}, {high}]"


def shares(value: MeanEstimate) -> str:
    """Write a share with its interval: "98 % [97 %, 99 %]"; cut, not rounded, so that only all is 100 %."""
    ends = [value.mean, *(end for end in (value.low, value.high) if end is not None)]
    mean, *interval = (f"{math.floor(1000 * end + 1e-6) / 10:.4g} %" for end in ends)
    return f"{mean} [{', '.join(interval)}]" if len(interval) == 2 else mean


_FILTERS = {"fmt": format} | {
    each.__name__: each for each in (share, shares, over, percent, number, capital, listed, counted, estimate)
}
