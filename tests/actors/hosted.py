"""Actors for `test_local`. Ray's processes import this module: torch with it would take them seconds. Not a test itself."""

import os
import time


class Slow:
    def collect(self, seconds: float) -> tuple[int, str]:
        time.sleep(seconds)
        return os.getpid(), "clips"

    def fail(self) -> None:
        raise OSError("the disk is full")


class Quick:
    def __init__(self, start: int = 0):
        self.count = start

    async def add(self, number: int) -> int:
        self.count += number
        return self.count

    def __len__(self) -> int:
        return self.count
