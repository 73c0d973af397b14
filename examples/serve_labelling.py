"""The labelling page behind Ray Serve: the same app, as a deployment, about clips of random actions in the moving dot.

    python examples/serve_labelling.py STORE [--port 8765]

Prints the link. Answers are in the preference store STORE before they are acknowledged; `rlhf-ray fit STORE --environment
rlhf_ray/MovingDot-v0` learns a reward from them. Needs ray[serve]. One replica: leases are its memory.
"""

from __future__ import annotations

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
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.queries.pool import ClipPool
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store import PreferenceStore

ENVIRONMENT = "rlhf_ray/MovingDot-v0"


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
@serve.ingress()
class Page:
    """The page about ``questions`` pairs of clips.

    Args:
        store: folder of the preference store, on the replica's node; or its URL.
        sessions: the file with who may label and their tokens: Ray's dashboard shows what a deployment is made from.
        hosts: names that browsers may call the server by.
        questions: how many pairs.
    """

    async def __init__(self, store: str, sessions: Path, hosts: list[str], questions: int):
        self.sessions, self.hosts = Sessions.load(sessions), hosts
        self.desk = Desk(
            LocalStore(PreferenceStore(store)), QuestionQueue(overlap_share=0.2), self.sessions.key("leases"), fps=15.0
        )
        settings = ResolvedFragments(length=20)
        make_env = functools.partial(envs.make_env, ENVIRONMENT)
        env = make_env()
        pool = ClipPool(
            settings, PreferenceSettings(), RewardModelSettings(), env.observation_space, env.action_space, seed=0
        )
        pool.add(RolloutCollector(make_env, settings, seed=0).collect(20 * questions, 10, 0)[1])
        pairs = pool.propose(questions, 0, None)[1]
        await self.desk.ask(0, pairs)

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(
            self.desk,
            self.sessions,
            hosts=self.hosts,
            title="Moving dot",
            instructions="Which dot keeps nearer to the middle?",
        )


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args()
    file = Path(f"{options.store}.labelling.json").absolute()  # not in the store, which may be shared
    sessions = Sessions.keep(file, ["me"])
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    serve.run(Page.bind(options.store, file, ["127.0.0.1", "localhost"], 50), name="labelling")
    print(sessions.link("me", f"http://127.0.0.1:{options.port}"), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
