"""What the desk and the page exchange: a question on a screen, and an answer."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_ray.labelling.films import FilmInfo


@dataclass(frozen=True)
class Question:
    """A question on one annotator's screen.

    Attributes:
        lease: returned with the answer.
        left, right: the films, by screen side.
        fps: frames per second at speed 1.
        expires_in: seconds until another annotator may get the pair.
    """

    lease: str
    left: FilmInfo
    right: FilmInfo
    fps: float
    expires_in: float


@dataclass(frozen=True)
class AnswerRequest:
    """An answer as the browser sends it.

    Attributes:
        event_id: made by the browser, 32 hex digits; makes sending an answer idempotent.
        lease: lease of the question.
        answer: the name of an `rlhf_ray.data.answers.AnswerKind`, by screen side.
        view_ms: time the question was visible, in milliseconds.
        hidden_ms: time the page was hidden with this question, in milliseconds.
        loops_left, loops_right: how many times each film played to its end.
        key: the key pressed; None for mouse and touch.
    """

    event_id: str
    lease: str
    answer: str
    view_ms: int = 0
    hidden_ms: int = 0
    loops_left: int = 0
    loops_right: int = 0
    key: str | None = None


@dataclass(frozen=True)
class Meaning:
    """What makes two events the same: who said what about which lease, or took which event back."""

    annotator: str
    about: str | None
    said: str
