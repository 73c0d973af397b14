"""Settings of a machine as the teacher: a vision-language model behind a server."""

from dataclasses import dataclass
from typing import Annotated

from rlhf_ray.settings.checks import Bounds, Count, Natural, Positive, Share, check_values, require

KEY_VARIABLE = "RLHF_RAY_MACHINE_KEY"
"""Environment variable with the server's key, which nothing stores."""


@dataclass(frozen=True)
class MachineSettings:
    """The model that compares clips with preferences.teacher=machine or machine+human. It is told labelling.instructions."""

    url: str = ""
    """Address of a server that speaks OpenAI's chat completions with images, such as http://127.0.0.1:8000/v1 (vLLM, Ollama, LM
    Studio, clouds). Clips are sent there and nowhere else. Its key, if it asks for one, is the environment variable
    RLHF_RAY_MACHINE_KEY."""
    model: str = ""
    """The model's name at the server."""
    questions: Count = 2000
    """Most requests that the server answers. A pair takes two, one for each order of its clips, and one more for each answer that
    can't be read. Requests that fail don't count."""
    frames: Annotated[int, Bounds(2, 64)] = 6
    """Frames that the model sees of each clip, at equal distances, with the first and the last."""
    timeout: Positive = 60.0
    """Seconds in which the server has to answer."""
    people: Natural = 30
    """With machine+human: most questions to people, a third of them for checks."""
    checks: Share = 0.1
    """With machine+human: share (0 to 1) of the pairs about which the machine is sure that people are asked about too, without
    seeing its answer: they show how often it is wrong."""

    def __post_init__(self) -> None:
        check_values(self, "machine")
        fits = not self.url or self.url.startswith(("http://", "https://"))
        require(
            fits, "machine.url", self.url, "it must begin with http:// or https://, as http://127.0.0.1:8000/v1 does"
        )
        require("@" not in self.url, "machine.url", "…@…", f"settings are stored: put the key into {KEY_VARIABLE}")
