"""Servers that stand for vision-language models. Not a test itself."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def chat(text: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": 7}}).encode()


class Machine:
    """A server that answers requests by ``reply(body, pngs)``: (status, headers, content), or None to hang up."""

    def __init__(self, reply: Callable[[Any, list[bytes]], Any]):
        self.bodies: list[Any] = []
        self.keys: list[str | None] = []
        machine_ = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                machine_.bodies.append(body)
                machine_.keys.append(self.headers["Authorization"])
                parts = body["messages"][0]["content"]
                images = [part["image_url"]["url"].partition(",")[2] for part in parts if part["type"] == "image_url"]
                said = reply(body, [base64.b64decode(image) for image in images])
                if said is None:
                    self.close_connection = True
                    return
                status, headers, content = said
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                slowly = type(content) is not bytes
                for part in [content[i : i + 1] for i in range(len(content))] if slowly else [content]:
                    self.wfile.write(part)
                    time.sleep(0.05 * slowly)

            def log_message(self, *arguments: Any) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client has given up
                    super().handle()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextlib.contextmanager
def serving(reply: Callable[[Any, list[bytes]], Any]) -> Iterator[Machine]:
    served = Machine(reply)
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        thread.join()
        served.server.server_close()
