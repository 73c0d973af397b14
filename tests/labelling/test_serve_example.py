"""The page behind Ray Serve, as in the example: a process of its own, since Serve's actors outlive what starts them."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_ray.store import PreferenceStore
from tests.labelling.person import Person

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_labelling.py"


@pytest.mark.soak
@pytest.mark.ray
def test_people_label_behind_ray_serve(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(tmp_path / "store"), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("w"),
        text=True,
        env=os.environ | {"PYTHONPATH": str(EXAMPLE.parents[1])},
    )
    try:
        assert process.stdout is not None
        link = next((found.group() for line in process.stdout if (found := re.search(r"http://\S+#\S+", line))), None)
        assert link is not None, (tmp_path / "errors").read_text()
        person = Person(link, tmp_path / "store")
        person.label(lambda: len(person.acknowledged) == 5)
        assert person.client.get("/").headers["content-security-policy"].startswith("default-src")
        stored = PreferenceStore(tmp_path / "store", create=False).events()["event_id"].to_pylist()
        assert set(person.acknowledged) <= set(stored)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
