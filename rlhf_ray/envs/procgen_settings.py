"""What procgen has to choose from: its games, their modes and its options, and the errors for what it has not."""

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
    """Procgen's own settings, all off or on as procgen has them unless given."""

    center_agent: bool
    """Keep the agent in the middle of the picture, where the game scrolls (default True)."""
    use_backgrounds: bool
    """Paint backgrounds instead of black (default True)."""
    use_monochrome_assets: bool
    """Plain rectangles instead of pictures (default False)."""
    restrict_themes: bool
    """One theme for each kind of thing (default False)."""
    use_generated_assets: bool
    """Generated textures instead of drawn ones (default False)."""
    paint_vel_info: bool
    """Paint the agent's velocity into the corner, in the games that have one (default False)."""
    use_sequential_levels: bool
    """Go on to the next level within the episode when one is solved (default False)."""
    debug_mode: int
    """A game's own debugging switch (default 0)."""


def modes_of(game: str) -> list[str]:
    """The distribution modes that procgen has for a game; empty for an unknown game."""
    return [mode for mode, games in _GAMES_WITH_MODE.items() if game in games]


def check_settings(game: str, mode: str, start_level: int, num_levels: int, options: dict[str, object]) -> None:
    """Raises a ValueError for what procgen would answer with abort(), an assertion, or silence."""
    if game not in GAMES:
        raise ValueError(f"game={game!r} of procgen: it must be one of {', '.join(GAMES)}.")
    if mode not in modes_of(game):
        raise ValueError(f"distribution_mode={mode!r} of procgen: {game} has {', '.join(modes_of(game))}.")
    if unknown := options.keys() - ProcgenOptions.__annotations__.keys():
        raise ValueError(
            f"Option {', '.join(sorted(unknown))} of procgen is unknown. There are start_level, num_levels, "
            f"max_episode_steps, render_mode, {', '.join(ProcgenOptions.__annotations__)}; num_threads in a vector."
        )
    if mode == "exploration" and (start_level, num_levels) != (0, 0):
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: the mode 'exploration' is one level of "
            "procgen's choice. Leave both at 0, or choose another mode."
        )
    if start_level < 0 or num_levels < 0 or start_level + num_levels >= 2**31:
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: neither may be negative, and their sum "
            "must be below 2**31."
        )
    if start_level > 0 and num_levels == 0:
        raise ValueError(
            f"start_level={start_level} with num_levels=0 of procgen: procgen then ignores start_level and draws from "
            "all levels. Set num_levels above 0, or start_level to 0."
        )
