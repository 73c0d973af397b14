"""Deep reinforcement learning from human preferences, distributed on Ray.

Importing the package limits this process to one PyTorch thread (and, through the environment, the processes it starts):
the networks here are small, and several actors with several threads each on a small machine lose far more than they gain.
Set ``OMP_NUM_THREADS`` before the import to choose another number.
"""

import os
import sys

__version__ = "0.1.0"

_threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
if "torch" in sys.modules:  # too late for the environment variable to be read
    sys.modules["torch"].set_num_threads(int(_threads))
