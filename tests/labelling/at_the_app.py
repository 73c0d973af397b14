"""The labelling page's app, asked by test clients."""

from fastapi.testclient import TestClient

EVENT = "0" * 31 + "1"


def enter(app, sessions, name):
    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    assert client.post("/api/session", json={"token": sessions.people[name].token}).json()["name"] == name
    return client


def answer(lease, event=EVENT, **changes):
    return {"event_id": event, "lease": lease, "answer": "left", **changes}


def ask(client, count=1):
    return client.post("/api/questions", json={"count": count, "holding": []}).json()["questions"]
