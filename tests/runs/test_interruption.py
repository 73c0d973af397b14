"""Interruption: what signals do, in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, time
from rlhf_ray.runs.interruption import SAME_SIGNAL, Interrupted, interruptible, sigterm_as_ctrl_c

def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

sigterm_as_ctrl_c()
"""
ASKED = "with interruptible() as asked:\n    send(); send(); print(asked())"
TWICE = ASKED + "; time.sleep(SAME_SIGNAL + 0.1); send(signal.SIGINT); print('not reached')"
AT_ONCE = """
with interruptible() as asked:
    try:
        with asked.at_once():
            send(); send(); time.sleep(5)
    except Interrupted:
        print(asked(), "at once")
    try:
        with asked.at_once():
            print("not reached")
    except Interrupted:
        print("already")
"""
TURNED = """
with interruptible() as asked:
    try:
        with asked.at_once():
            try:
                send()
                time.sleep(60)
            except KeyboardInterrupt:
                raise KeyboardInterrupt from None  # as ray.get does
    except Interrupted:
        print("at once")
"""
TIMED = """
with interruptible() as asked:
    with asked.at_once(within=0.2):
        print("as long as it takes")
    send()
    try:
        with asked.at_once(within=0.2):
            time.sleep(60)
    except Interrupted:
        print("in time")
    with asked.at_once(within=0.2):
        pass
    time.sleep(0.5)
"""
NOTHING = """
from rlhf_ray.runs.interruption import nothing_to_save
with nothing_to_save():
    try:
        send()
        time.sleep(60)
    except BaseException:
        print("not reached")
"""
OUTSIDE = "send(); time.sleep(60)"
TWICE_OUTSIDE = """
for number in (1, 2):
    try:
        send()
    except KeyboardInterrupt:
        print(number)
"""
IN_BACKGROUND = (
    "signal.signal(signal.SIGINT, signal.SIG_IGN); send(); time.sleep(60)"  # as a script's `command &` begins
)


@pytest.mark.parametrize(
    ("body", "printed", "ends"),
    [
        (ASKED, "True", 0),
        (TWICE, "True", -signal.SIGINT),
        (AT_ONCE, "True at once\nalready", 0),
        (TURNED, "at once", 0),
        (TIMED, "as long as it takes\nin time", 0),
        (NOTHING, "", 128 + signal.SIGTERM),
        (OUTSIDE, "", -signal.SIGINT),
        (TWICE_OUTSIDE, "1", 0),
        (IN_BACKGROUND, "", -signal.SIGINT),
    ],
)
def test_a_signal_that_comes_twice_within_a_second_is_one_and_the_second_one_stops(
    body: str, printed: str, ends: int
) -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, timeout=50)
    assert finished.stdout.strip() == printed
    assert finished.returncode in (ends, 1 if ends else 0, 130 if ends else 0), finished.stderr
