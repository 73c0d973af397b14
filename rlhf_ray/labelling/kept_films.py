"""Stored films by clip id: in memory, and in a folder that survives a restart of the page."""

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
from rlhf_ray.data.strays import without_strays
from rlhf_ray.labelling.camera import picture
from rlhf_ray.labelling.films import Film, FilmInfo, film, film_info
from rlhf_ray.settings.labelling import Channels, Zoom

KEPT_BYTES = 256 << 20
"""Limit for films and image clips in memory, and for films in the folder, in bytes; the newest stay."""

logger = logging.getLogger(__name__)


class Films:
    """The newest films, and the newest image clips, which become films on demand.

    Args:
        folder: where films are stored, for a restarted page or a resumed run; None: in memory only.
        channels: of image clips, the channels to show.
        zoom: see `rlhf_ray.settings.LabellingSettings.zoom`.
    """

    def __init__(self, folder: Path | None = None, channels: Channels = "auto", zoom: Zoom = "auto"):
        self._folder, self._channels = folder, channels
        self._zoom = None if zoom == "auto" else zoom
        self._infos: dict[str, FilmInfo] = {}
        self._content: OrderedDict[str, bytes | Array] = OrderedDict()
        """WebP films, or the images of clips that nobody has requested yet."""
        self._bytes = self._on_disk = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(without_strays(folder.glob("*.webp")), key=lambda file: file.stat().st_mtime):
                with contextlib.suppress(OSError, ValueError, TypeError):  # skip incomplete films
                    info = FilmInfo(**json.loads(file.with_suffix(".json").read_text()))
                    self._take(Film(info, file.read_bytes()))
                    self._on_disk += file.stat().st_size

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def info(self, name: str) -> FilmInfo:
        """The layout of this clip's film."""
        return self.zoomed(self._infos[name])

    def film(self, name: str) -> Film:
        """The film of this clip, which must be stored as such (`put`)."""
        sheet = self._content[name]
        assert isinstance(sheet, bytes)
        return Film(self._infos[name], sheet)

    def zoomed(self, info: FilmInfo) -> FilmInfo:
        """The layout with the factor by which people see it."""
        return dataclasses.replace(info, zoom=self._zoom if info.pixelated else None)

    def put(self, made: Film) -> None:
        """Store a film."""
        if made.info.id in self._content:
            return
        self._take(made)
        if self._folder is not None:
            try:
                self._write(self._folder / f"{made.info.id}.webp", made)
            except OSError as error:
                logger.warning("Can't store a film (%s). Its clip can't be shown after a restart.", error)

    def put_images(self, name: str, observations: Array) -> None:
        """Store an image clip, ``[length + 1, height, width, channels]``: its observations are its film."""
        frames, height, width = observations.shape[:3]
        self._infos[name] = film_info(name, frames, height, width, pixelated=True)
        self._keep(name, observations.copy())

    async def sheet(self, name: str) -> bytes | None:
        """The film of this clip, as the bytes of a WebP file; None if it is not stored."""
        content = self._content.get(name)
        if content is None or isinstance(content, bytes):
            return content
        frames = [picture(observation, self._channels) for observation in content]
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
        for old in sorted(without_strays(file.parent.glob("*.webp")), key=lambda file: file.stat().st_mtime):
            self._on_disk -= old.stat().st_size
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)
            if self._on_disk <= KEPT_BYTES * 0.8:
                return
