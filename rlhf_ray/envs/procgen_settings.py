"""Procgen's games, modes and options, and the validation of settings."""

from typing import TypedDict

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)
_GAMES_WITH_MODE = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"),
}


class ProcgenOptions(TypedDict, total=False):
    """Procgen's own settings, with procgen's defaults."""

    center_agent: bool
    """Keep the agent in the centre of the image, where the game scrolls (default True)."""
    use_backgrounds: bool
    """Draw backgrounds instead of black (default True)."""
    use_monochrome_assets: bool
    """Draw plain rectangles instead of sprites (default False)."""
    restrict_themes: bool
    """Use one theme per kind of object (default False)."""
    use_generated_assets: bool
    """Use generated textures instead of drawn ones (default False)."""
    paint_vel_info: bool
    """Draw the agent's velocity in the corner, in games that support it (default False)."""
    use_sequential_levels: bool
    """Continue with the next level within the episode when one is solved (default False)."""
    debug_mode: int
    """The game's debug mode (default 0)."""


def modes_of(game: str) -> list[str]:
    """Return the distribution modes of a game; empty for an unknown game."""
    return [mode for mode, games in _GAMES_WITH_MODE.items() if game in games]


def check_settings(game: str, mode: str, start_level: int, num_levels: int, options: dict[str, object]) -> None:
    """Raise ValueError for settings that procgen would answer with abort(), an assertion, or silence."""
    if game not in GAMES:
        raise ValueError(f"game of procgen is {game!r}; it must be one of {', '.join(GAMES)}.")
    if mode not in modes_of(game):
        raise ValueError(f"distribution_mode of procgen is {mode!r}; {game} has {', '.join(modes_of(game))}.")
    if unknown := options.keys() - ProcgenOptions.__annotations__.keys():
        raise ValueError(
            f"procgen has no option {', '.join(sorted(unknown))}. Its options are start_level, num_levels, "
            f"max_episode_steps, render_mode, {', '.join(ProcgenOptions.__annotations__)}; and num_threads if vectorised."
        )
    if mode == "exploration" and (start_level, num_levels) != (0, 0):
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: the mode 'exploration' has one fixed level. "
            "Leave both at 0, or choose another mode."
        )
    if start_level < 0 or num_levels < 0 or start_level + num_levels >= 2**31:
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: neither may be negative, and their sum "
            "must be below 2**31."
        )
    if start_level > 0 and num_levels == 0:
        raise ValueError(
            f"start_level={start_level} with num_levels=0 of procgen: procgen would ignore start_level and draw from "
            "all levels. Set num_levels above 0, or start_level to 0."
        )
