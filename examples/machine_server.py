"""A stand-in for a vision-language model: a server with OpenAI's chat completions that judges Pendulum from pixels alone.

    pip install /path/to/rlhf_ray
    python examples/machine_server.py --wrong 0.1
    rlhf-ray train pendulum --teacher machine --machine.url http://127.0.0.1:8766/v1 --machine.model tip

It finds the pendulum's tip, and prefers the clip that is nearer to upright and rest; a share is wrong. Ready in seconds.
"""

import argparse
import base64
import hashlib
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image


def score(png: bytes) -> float:
    """Return Pendulum's reward per step as far as a strip of six square frames of ten steps shows it: angle and speed."""
    strip = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    angles = np.array([angle(strip[:, at : at + len(strip)]) for at in range(0, strip.shape[1], len(strip) + 4)])
    return float(-np.mean(angles**2) - 10 * np.mean(np.diff(np.unwrap(angles)) ** 2))


def angle(frame: Any) -> float:
    """Return the pendulum's angle to upright in an image ``[side, side, 3]``: of its red pixels farthest from the middle."""
    rows, columns = np.nonzero((frame[:, :, 0] > 150) & (frame[:, :, 1] < 140) & (frame[:, :, 2] < 140))
    up, right = (len(frame) - 1) / 2 - rows, columns - (len(frame) - 1) / 2
    far = np.argsort(up**2 + right**2)[-max(1, len(rows) // 20) :]
    return float(np.arctan2(right[far].mean(), up[far].mean()))


class Handler(BaseHTTPRequestHandler):
    """Answers requests: which of two strips has the higher score."""

    wrong = 0.0

    def do_POST(self) -> None:
        """Answer one request."""
        parts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        first, second = (base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts[2::2])
        drawn = hashlib.sha256(b"".join(sorted((first, second)))).digest()  # the same in either order
        errs = int.from_bytes(drawn[:4], "big") < self.wrong * 2**32
        text = json.dumps({"better": "A" if (score(first) > score(second)) != errs else "B"})
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrong", type=float, default=0.0, help="share of wrong answers, 0 to 1")
    Handler.wrong = parser.parse_args().wrong
    ThreadingHTTPServer(("127.0.0.1", 8766), Handler).serve_forever()
