"""Ray Serve: the labelling page as a deployment, about clips of random actions in the moving dot.

    pip install "/path/to/rlhf_ray[serve]"
    python examples/serve_labelling.py [STORE] [--port 8765]

It prints a link and serves until Ctrl-C. Answers are in the preference store STORE (`labels` unless given) before they are
acknowledged; `rlhf-ray fit STORE --environment rlhf_ray/MovingDot-v0` learns a reward from them. Starting takes half a minute.
"""

import argparse
import functools
import signal
from pathlib import Path
from typing import Any

from ray import serve

from rlhf_ray import envs
from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.collect import LocalStore
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.settings import LabellingSettings, PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store import PreferenceStore

QUESTIONS = 50
PAGE = LabellingSettings(instructions="Which dot keeps nearer to the middle?")


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
@serve.ingress()
class Page:
    """The page: one replica, in whose memory leases are; made from files, since Ray's dashboard shows a deployment's arguments."""

    async def __init__(self, store: str, sessions: Path):
        self.sessions = Sessions.load(sessions)
        self.desk = Desk(LocalStore(PreferenceStore(store)), self.sessions.key("leases"), PAGE, fps=15.0)
        make_env = functools.partial(envs.make_env, "rlhf_ray/MovingDot-v0")
        fragments, spaces = ResolvedFragments(length=20), (make_env().observation_space, make_env().action_space)
        pool = FragmentPool(fragments, PreferenceSettings(), RewardModelSettings(), *spaces, seed=0)
        pool.add(RolloutCollector(make_env, fragments, seed=0).collect(20 * QUESTIONS, 10, 0)[1])
        await self.desk.ask(0, pool.propose(QUESTIONS, 0, None)[1])

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self.desk, self.sessions, PAGE, "Moving dot")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", default="labels")
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args()
    file = Path(f"{options.store}.labelling.json").absolute()  # not in the store, which may be shared
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    sessions = Sessions.keep(file, ["me"])
    serve.run(Page.bind(str(Path(options.store).absolute()), file), name="labelling")
    print(sessions.link("me", f"http://127.0.0.1:{options.port}"), flush=True)
    signal.pause()
