"""Films that people may be shown, by the ids of the clips that they show: in memory, and in a folder that outlives the page."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections import OrderedDict
from pathlib import Path

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.labelling.films import Film, FilmInfo, film, film_info, picture

KEPT_BYTES = 256 << 20
"""Films and clips of images kept in memory, and films kept in the folder: the newest."""

logger = logging.getLogger(__name__)


class Films:
    """The newest films, and the newest clips of images that films can be made of.

    Args:
        folder: where films are kept for a page that is restarted, or a run that is resumed; None: they are not.
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        self._infos: dict[str, FilmInfo] = {}
        self._content: OrderedDict[str, bytes | Array] = OrderedDict()
        """Films, and of clips that nobody has looked at yet the images."""
        self._bytes = self._on_disk = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(folder.glob("*.webp"), key=lambda file: file.stat().st_mtime):
                with contextlib.suppress(OSError, ValueError, TypeError):  # half a film is none
                    info = FilmInfo(**json.loads(file.with_suffix(".json").read_text()))
                    self._take(Film(info, file.read_bytes()))
                    self._on_disk += file.stat().st_size

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def info(self, name: str) -> FilmInfo:
        """How the film of this clip is played."""
        return self._infos[name]

    def put(self, made: Film) -> None:
        """Keep a film."""
        if made.info.id in self._content:
            return
        self._take(made)
        if self._folder is not None:
            try:
                self._write(self._folder / f"{made.info.id}.webp", made)
            except OSError as error:
                logger.warning("Can't keep a film (%s). After a restart its clip can't be shown.", error)

    def put_images(self, name: str, observations: Array) -> None:
        """Keep a clip whose observations are images, ``[length + 1, height, width, channels]``: they are its film."""
        frames, height, width = observations.shape[:3]
        self._infos[name] = film_info(name, frames, height, width, pixelated=True)
        self._keep(name, observations.copy())

    async def sheet(self, name: str) -> bytes | None:
        """The film (a WebP file) of this clip; None where it is not there."""
        content = self._content.get(name)
        if content is None or isinstance(content, bytes):
            return content
        frames = [picture(observation) for observation in content]
        made = await asyncio.to_thread(film, name, frames, pixelated=True)
        self._keep(name, made.sheet)
        return made.sheet

    def _take(self, made: Film) -> None:
        self._infos[made.info.id] = made.info
        self._keep(made.info.id, made.sheet)

    def _keep(self, name: str, content: bytes | Array) -> None:
        def size(of: bytes | Array | None) -> int:
            return 0 if of is None else len(of) if isinstance(of, bytes) else of.nbytes

        self._bytes += size(content) - size(self._content.pop(name, None))
        self._content[name] = content
        while self._bytes > KEPT_BYTES and len(self._content) > 1:
            self._bytes -= size(self._content.popitem(last=False)[1])

    def _write(self, file: Path, made: Film) -> None:
        file.with_suffix(".json").write_text(json.dumps(dataclasses.asdict(made.info)))
        with whole_file(file, durable=False) as sink:
            sink.write(made.sheet)
        self._on_disk += len(made.sheet)
        if self._on_disk <= KEPT_BYTES:
            return
        for old in sorted(file.parent.glob("*.webp"), key=lambda file: file.stat().st_mtime):
            self._on_disk -= old.stat().st_size
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)
            if self._on_disk <= KEPT_BYTES * 0.8:
                return
