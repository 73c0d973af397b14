"""Films: what an annotator sees of a clip, as one image with all frames (a sprite sheet). Made, and kept by the clips' ids."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.data.strays import without_strays
from rlhf_ray.labelling.camera import RENDERED_SIDE, Camera, picture
from rlhf_ray.settings.labelling import Channels, Zoom

logger = logging.getLogger(__name__)

QUALITY = 90
"""WebP quality of rendered frames. Image observations are stored losslessly."""

LOSSLESS_EFFORT = 20
"""WebP "quality" of lossless images, which is the compression effort, 0 to 100."""

EPISODE_FRAMES = 100
"""Maximum number of frames in the film of an episode."""

KEPT_BYTES = 256 << 20
"""Limit for films and image clips in memory, and for films in the folder, in bytes; the newest stay."""

LARGEST_SHEET = 16_383
"""Maximum side of a WebP image, in pixels."""


@dataclass(frozen=True)
class FilmInfo:
    """The layout of a film.

    Attributes:
        id: id of the clip (64 hex digits).
        frames: number of frames; frame ``k`` is in column ``k % columns`` and row ``k // columns`` of the sheet.
        columns: number of columns of the sheet.
        width, height: size of one frame, in pixels.
        pixelated: True if the frames are the agent's own observations, enlarged without smoothing; False if they are rendered
            for people.
        zoom: factor by which a pixelated film is shown, if there is room; None: as large as fits.
    """

    id: str
    frames: int
    columns: int
    width: int
    height: int
    pixelated: bool
    zoom: int | None = None


@dataclass(frozen=True)
class Film:
    """A film: ``sheet`` is the bytes of a WebP file."""

    info: FilmInfo
    sheet: bytes


@dataclass(frozen=True)
class Episode:
    """A film of an episode.

    Attributes:
        film: the film; long episodes show every n-th step only.
        fps: frames of the film per second at the environment's own speed.
        steps: number of environment steps shown.
        ended: whether the episode ended there.
        policy_version: version of the policy that acted.
        env_steps: environment steps of the training at that time.
    """

    film: Film
    fps: float
    steps: int
    ended: bool
    policy_version: int
    env_steps: int


def film(name: str, frames: Sequence[Array] | Array, *, pixelated: bool) -> Film:
    """Make a film of ``frames``.

    Args:
        name: the film's id.
        frames: ``[height, width, 3]`` uint8 each, all of the same size.
        pixelated: keep every pixel; otherwise scale frames down to about `RENDERED_SIDE` and compress lossily.
    """
    height, width = frames[0].shape[:2]
    info = film_info(name, len(frames), height, width, pixelated=pixelated)
    sheet = Image.new("RGB", (info.columns * info.width, math.ceil(info.frames / info.columns) * info.height))
    for i, frame in enumerate(frames):
        image = Image.fromarray(np.ascontiguousarray(frame))
        if not pixelated:
            image = image.reduce(_reduction(width, height))
        sheet.paste(image, (i % info.columns * info.width, i // info.columns * info.height))
    buffer = io.BytesIO()
    # Slower methods make sheets only slightly smaller.
    options = (
        {"lossless": True, "quality": LOSSLESS_EFFORT, "method": 2} if pixelated else {"quality": QUALITY, "method": 0}
    )
    sheet.save(buffer, "WEBP", **options)
    return Film(info, buffer.getvalue())


def frames_of(made: Film) -> Array:
    """Return the frames of a film, ``[frames, height, width, 3]`` uint8: scaled down and compressed as people see them."""
    info = made.info
    with Image.open(io.BytesIO(made.sheet)) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    rows = math.ceil(info.frames / info.columns)
    cells = pixels.reshape(rows, info.height, info.columns, info.width, 3).swapaxes(1, 2)
    return cells.reshape(-1, info.height, info.width, 3)[: info.frames]


def film_info(name: str, frames: int, height: int, width: int, *, pixelated: bool) -> FilmInfo:
    """The layout of a film with so many frames; ``height`` and ``width`` in pixels, before scaling."""
    reduction = 1 if pixelated else _reduction(width, height)
    width, height = math.ceil(width / reduction), math.ceil(height / reduction)
    columns = max(1, min(math.ceil(math.sqrt(frames)), LARGEST_SHEET // width))
    if math.ceil(frames / columns) * height > LARGEST_SHEET:
        raise ValueError(
            f"{frames} frames of {width}x{height} pixels do not fit into one WebP image; use fewer frames."
        )
    return FilmInfo(name, frames, columns, width, height, pixelated)


def _reduction(width: int, height: int) -> int:
    """The factor by which a rendered frame is reduced along each side."""
    return max(1, round(max(width, height) / RENDERED_SIDE))


class Reel:
    """Records an episode's frames that films may need: clips of ``length`` steps from ``first`` on, every ``spacing`` steps."""

    def __init__(self, camera: Camera, first: int, spacing: int, length: int):
        self.camera, self.first, self.spacing, self.length = camera, first, spacing, length
        camera.begin()
        self.frames: dict[int, Array] = {}
        self._stride = 0

    def show(self, steps: int) -> None:
        """Also record frames for a film of the whole episode, of at most ``steps`` steps."""
        self._stride = math.ceil((steps + 1) / EPISODE_FRAMES)

    def see(self, t: int, observation: Array) -> None:
        """Record the frame after step ``t``, which returned ``observation``, if a film needs it."""
        in_clip = t >= self.first and (t - self.first) % self.spacing <= self.length
        if in_clip or (self._stride and t % self._stride == 0):
            self.frames[t] = self.camera.frame(observation)

    def windows(self, steps: int) -> list[int]:
        """Start steps of the clips filmed completely, in an episode of ``steps`` steps."""
        return list(range(self.first, steps - self.length + 1, self.spacing))

    def episode(self, steps: int, ended: bool, policy_version: int, taken: int) -> Episode:
        """The film of the whole episode; needs `show` first."""
        shown = [frame for t, frame in self.frames.items() if t % self._stride == 0]
        name = hashlib.sha256(b"".join(frame.tobytes() for frame in shown)).hexdigest()
        made = film(name, shown, pixelated=self.camera.pixelated)
        return Episode(made, self.camera.fps / self._stride, steps, ended, policy_version, taken)


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
