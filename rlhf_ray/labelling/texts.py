"""The texts of the labelling page, in English, another language in the box, or a file of the user's."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.strays import stray

logger = logging.getLogger(__name__)

FOLDER = files("rlhf_ray.labelling").joinpath("languages")
ENGLISH = "en"
"""The file with all texts: the template of every other."""

_VALUE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Texts:
    """The page's texts: the English ones by default.

    Attributes:
        language: as in HTML's ``lang``, such as "de" or "pt-BR".
        texts: the texts by their English ones. What is missing stays English.
    """

    language: str = ENGLISH
    texts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, english: str, **values: Any) -> str:
        """Return the text, with ``values`` in place of their {names}."""
        text = self.texts.get(english, english)
        return _VALUE.sub(lambda name: str(values.get(name[1], name[0])), text)


IN_ENGLISH = Texts()


def load_texts(name: str) -> Texts:
    """Read the texts that ``labelling.language`` names: a language in the box, or a JSON file. Warns of missing and unknown texts.

    Raises:
        SettingError: there is no such language or file, or the file is damaged or says something else than it should.
    """
    if name == ENGLISH:
        return IN_ENGLISH
    own = Path(name).suffix == ".json" or "/" in name
    try:
        if not own and name not in languages():
            raise ValueError(
                f"it must be one of {', '.join(languages())}, or a JSON file of texts (docs/labelling.md): FILE.json"
            )
        content = Path(name).read_text("utf-8") if own else FOLDER.joinpath(f"{name}.json").read_text("utf-8")
        return checked(json.loads(content), name)
    except OSError as error:
        why = f"the file can't be read ({error.strerror}): correct the path"
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        why = f"which is not JSON in UTF-8 ({error}): repair it"
    except ValueError as error:
        why = str(error)
    raise SettingError(f"labelling.language is {name!r}; {why}.")


def languages() -> list[str]:
    """Return the names of the languages in the box."""
    names = (file.name for file in FOLDER.iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and not stray(name))


def english() -> list[str]:
    """Return all texts of the page, in English."""
    return list(json.loads(FOLDER.joinpath(f"{ENGLISH}.json").read_text("utf-8"))["texts"])


def checked(found: Any, name: str) -> Texts:
    """Check the content of the file ``name``: ``{"language": "de", "texts": {"English text": "German text", …}}``.

    Raises:
        ValueError: it has another form, or a text lacks a value that the page fills in.
    """
    given = found.get("texts") if isinstance(found, dict) else None
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ValueError(
            f'its content must be {{"language": "CODE", "texts": {{"English": "yours", …}}}}: copy '
            f"{FOLDER.joinpath('en.json')} and translate the texts after the colons"
        )
    language = found.get("language")
    if not isinstance(language, str) or not re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*", language):
        raise ValueError(f"its language is {language!r}; it must be a code as in HTML, such as de or pt-BR")
    known = english()
    texts = {text: given[text] for text in known if given.get(text, "").strip()}
    for text, translation in texts.items():
        if wrong := sorted(set(_VALUE.findall(text)) ^ set(_VALUE.findall(translation))):
            raise ValueError(
                f"its text {translation!r} for {text!r} must have the same names in braces: {{{'}, {'.join(wrong)}}} differs"
            )
    for what, which in (
        ("lacks, so they stay English", [text for text in known if text not in texts]),
        ("has but the page doesn't", [text for text in given if text not in known]),
    ):
        if which:
            named = "; ".join(map(repr, which))
            logger.warning("labelling.language: %d texts that %s %s: %s", len(which), name, what, named)
    return Texts(language, texts)
