"""cluster.yaml passes Ray's own validation, and keeps strangers out."""

import copy
import itertools
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def cluster() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def validate(cluster: dict[str, Any]) -> dict[str, Any]:
    """What `ray up` does before it calls the cloud. Note that Ray does not look inside `node_config`."""
    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    return prepared


def option(command: str, name: str) -> list[str]:
    """The values that `--name=value` or `--name value` has in a command line."""
    words = shlex.split(command)
    values = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return values + [value for word, value in itertools.pairwise(words) if word == name]


def test_ray_accepts_the_file(cluster: dict[str, Any]) -> None:
    prepared = validate(cluster)
    assert prepared["head_node_type"] == "head"
    assert prepared["available_node_types"]["rollout"]["max_workers"] <= prepared["max_workers"]
    assert prepared["available_node_types"]["head"]["max_workers"] == 0  # or the autoscaler may start a second head


def test_a_misspelt_key_is_refused(cluster: dict[str, Any]) -> None:
    cluster["max_worker"] = cluster.pop("max_workers")
    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        validate(cluster)


def test_an_unknown_head_type_is_refused(cluster: dict[str, Any]) -> None:
    cluster["head_node_type"] = "haed"
    with pytest.raises(ValueError, match="head_node_type"):
        validate(cluster)


def test_every_container_demands_the_token(cluster: dict[str, Any]) -> None:
    docker = validate(cluster)["docker"]
    environment = [value for line in docker["run_options"] for value in option(line, "--env")]
    assert [value for value in environment if value.startswith("RAY_AUTH_MODE")] == ["RAY_AUTH_MODE=token"]
    assert cluster["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert "RAY_AUTH" not in str(cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"])


def test_dashboard_listens_on_loopback_only(cluster: dict[str, Any]) -> None:
    starts = [command for command in validate(cluster)["head_start_ray_commands"] if "ray start" in command]
    assert [option(command, "--dashboard-host") for command in starts] == [["127.0.0.1"]]
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()


def test_security_group_is_rays_own(cluster: dict[str, Any]) -> None:
    # Ray's own opens SSH to the world and the rest to the cluster only; a wider one would have to be written down here.
    assert "security_group" not in cluster["provider"]
    assert not any("SecurityGroupIds" in kind["node_config"] for kind in cluster["available_node_types"].values())


def test_image_has_our_ray(cluster: dict[str, Any]) -> None:
    assert cluster["docker"]["image"].startswith(f"rayproject/ray:{ray.__version__}-py311")
