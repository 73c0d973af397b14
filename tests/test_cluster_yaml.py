"""cluster.yaml and deploy/ pass Ray's own validation, and keep strangers out.

The files of `ray up` are checked by what `ray up` checks before it calls a provider. Those of KubeRay are read by Ray's autoscaler
as it reads them in a cluster, which checks the groups and their resources; the names of the fields that KubeRay reads are compared
with a list, and pods are looked at as far as the tests below go.
"""

import copy
import itertools
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from packaging.requirements import Requirement
from ray.autoscaler._private.aws.config import DEFAULT_AMI, _create_default_ssh_inbound_rules
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[1]
CLOUDS = ["cluster.yaml", "deploy/gcp.yaml"]
LAUNCHED = [*CLOUDS, "deploy/machines.yaml"]
KUBERNETES = ["deploy/kubernetes-cluster.yaml", "deploy/kubernetes-job.yaml"]

# The fields of KubeRay 1.5's RayCluster and RayJob that its files here may use.
CLUSTER_FIELDS = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions"}
CLUSTER_FIELDS |= {"headGroupSpec", "workerGroupSpecs"}
JOB_FIELDS = {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
HEAD_FIELDS = {"serviceType", "rayStartParams", "template"}
WORKER_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def validate(cluster: dict[str, Any]) -> dict[str, Any]:
    """What `ray up` does before it calls the cloud. Note that Ray does not look inside `node_config`."""
    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    return prepared


def starts(cluster: dict[str, Any], who: str) -> list[str]:
    return [command for command in cluster[f"{who}_start_ray_commands"] if "ray start" in command]


def option(command: str, name: str) -> list[str]:
    """The values that `--name=value` or `--name value` has in a command line."""
    words = shlex.split(command)
    values = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return values + [value for word, value in itertools.pairwise(words) if word == name]


@pytest.mark.parametrize("name", CLOUDS)
def test_ray_accepts_the_file_and_it_has_what_a_run_needs(name: str) -> None:
    prepared = validate(load(name))
    kinds = prepared["available_node_types"]
    assert prepared["head_node_type"] == "head"
    assert kinds["head"]["max_workers"] == 0  # or the autoscaler may start a second head
    assert kinds["learner"]["resources"]["GPU"] == 1
    assert "GPU" not in kinds["rollout"]["resources"]
    assert sum(kinds[kind]["max_workers"] for kind in ("rollout", "learner")) == prepared["max_workers"]
    assert "spot" in str(kinds["rollout"]["node_config"]).lower()
    assert "spot" not in str([kinds["head"], kinds["learner"]]).lower()


def test_ray_accepts_machines_of_ones_own_each_of_which_demands_the_token() -> None:
    cluster = load("deploy/machines.yaml")
    prepared = validate(cluster)
    (kind,) = prepared["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == prepared["max_workers"] == 2
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    # Each of Ray's commands reads ~/.bashrc first.
    (exported,) = [command for command in cluster["setup_commands"] if "~/.bashrc" in command]
    assert "RAY_AUTH_MODE=token" in exported
    assert "RAY_AUTH" not in str(cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"])


@pytest.mark.parametrize("name", CLOUDS)
def test_every_container_demands_the_token(name: str) -> None:
    cluster = load(name)
    environment = [value for line in validate(cluster)["docker"]["run_options"] for value in option(line, "--env")]
    assert [value for value in environment if value.startswith("RAY_AUTH_MODE")] == ["RAY_AUTH_MODE=token"]
    assert cluster["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert "RAY_AUTH" not in str(cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"])


@pytest.mark.parametrize("name", LAUNCHED)
def test_dashboard_listens_on_loopback_only_and_memory_and_disk_are_sized(name: str) -> None:
    cluster = validate(load(name))
    (head,), (worker,) = starts(cluster, "head"), starts(cluster, "worker")
    assert option(head, "--dashboard-host") == ["127.0.0.1"]
    assert option(worker, "--dashboard-host") == []
    assert "0.0.0.0" not in (ROOT / name).read_text()
    for command in (head, worker):
        (size,), (folder,) = option(command, "--object-store-memory"), option(command, "--object-spilling-directory")
        assert int(size) >= 10**9
        assert folder.endswith("/spilled")
        options = cluster.get("docker", {}).get("run_options", [])
        assert not options or f"{folder}" in str(options)  # on the machine's disk, not in the container
        for line in options:
            for shared in option(line, "--shm-size"):
                assert int(shared.removesuffix("m")) * 10**6 > int(size)


def node_configs(name: str) -> dict[str, dict[str, Any]]:
    return {kind: about["node_config"] for kind, about in load(name)["available_node_types"].items()}


def test_on_aws_machines_are_in_the_group_that_takes_ssh_from_its_owner() -> None:
    # Ray's own takes it from everywhere. A group that is not put in ends `ray up` at once.
    assert _create_default_ssh_inbound_rules()[0]["IpRanges"] == [{"CidrIp": "0.0.0.0/0"}]
    for config in node_configs("cluster.yaml").values():
        assert config["SecurityGroupIds"] == ["sg-put-yours-in"]
        assert config["MetadataOptions"]["HttpTokens"] == "required"


def test_on_aws_the_head_may_start_this_clusters_machines_and_no_more() -> None:
    configs = node_configs("cluster.yaml")
    assert [kind for kind, config in configs.items() if "IamInstanceProfile" in config] == ["head"]
    assert configs["head"]["IamInstanceProfile"] == {"Name": "rlhf-ray-head"}
    statements = json.loads((ROOT / "deploy" / "aws-head.json").read_text())["Statement"]
    actions = {
        action for of in statements for action in ([of["Action"]] if isinstance(of["Action"], str) else of["Action"])
    }
    assert not any("*" in action for action in actions)
    assert all(action.startswith("ec2:") for action in actions)
    name = load("cluster.yaml")["cluster_name"]
    for of in statements:
        if of["Sid"] == "Look" or of["Sid"] == "WithWhatTheyConsistOf":
            assert of["Action"] == "ec2:RunInstances" or all(
                action.startswith("ec2:Describe") for action in of["Action"]
            )
        else:
            condition = of["Condition"]["StringEquals"]
            assert name in (
                condition.get("aws:RequestTag/ray-cluster-name"),
                condition.get("ec2:ResourceTag/ray-cluster-name"),
            )
    (start,) = [of for of in statements if of["Sid"].startswith("StartWorkers")]
    workers = {config["InstanceType"] for kind, config in configs.items() if kind != "head"}
    assert set(start["Condition"]["StringEquals"]["ec2:InstanceType"]) == workers


def test_on_google_cloud_machines_are_in_the_network_that_takes_ssh_from_its_owner() -> None:
    configs = node_configs("deploy/gcp.yaml")
    assert [kind for kind, config in configs.items() if "serviceAccounts" in config] == ["head"]
    (account,) = configs["head"]["serviceAccounts"]
    assert account["email"].startswith("rlhf-ray-head@")
    for config in configs.values():
        (interface,) = config["networkInterfaces"]
        assert interface["subnetwork"].endswith("/subnetworks/rlhf-ray")
        assert config["tags"] == {"items": ["rlhf-ray"]}


@pytest.mark.parametrize(
    ("script", "command", "words"), [("aws-account.sh", "aws", ()), ("gcp-project.sh", "gcloud", ("my-project",))]
)
def test_the_scripts_open_ssh_to_ones_own_address_alone(
    script: str, command: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """With commands that only write down what they are asked, as on an account that has nothing yet, and one that has all."""
    (tmp_path / "curl").write_text("#!/bin/sh\necho 203.0.113.7\n")
    (tmp_path / command).write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
case "$*" in
  *"Name=group-name"*) echo $GROUP ;;
  *IpPermissions*) echo 198.51.100.1/32 ;;
  *create-security-group*) echo sg-new ;;
  *get-role*|*describe*) exit $MISSING ;;
esac
"""
    )
    for file in ("curl", command):
        (tmp_path / file).chmod(0o755)
    for missing, group in (("1", "None"), ("0", "sg-old")):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MISSING": missing, "GROUP": group}
        run = [str(ROOT / "deploy" / script), *words]
        said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
        assert "203.0.113.7/32" in said
        asked = (tmp_path / "asked").read_text()
        (tmp_path / "asked").unlink()
        assert "0.0.0.0/0" not in asked
        assert "FullAccess" not in asked
        assert "compute.admin" not in asked
        ranges = re.findall(r"(?:--cidr|--source-ranges) (\S+)", asked)
        assert {*ranges} - {"198.51.100.1/32"} == {"203.0.113.7/32"}
        assert command != "aws" or "revoke-security-group-ingress" in asked  # of where one was before


@pytest.mark.parametrize("name", CLOUDS)
def test_images_have_our_ray_and_are_pinned(name: str) -> None:
    cluster = load(name)
    for config in node_configs(name).values():
        if "ImageId" in config:
            assert config["ImageId"] == DEFAULT_AMI[cluster["provider"]["region"]]
        else:
            for disk in config["disks"]:
                assert re.search(r"/images/[a-z0-9-]+-v\d{8}$", disk["initializeParams"]["sourceImage"])
    assert cluster["docker"]["image"] == f"rayproject/ray:{ray.__version__}-py311-cpu"
    assert cluster["available_node_types"]["learner"]["docker"]["worker_image"].endswith(
        f":{ray.__version__}-py311-gpu"
    )


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_is_committed_is_installed_with_pinned_versions(name: str) -> None:
    cluster = load(name)
    assert "build/cluster" in cluster["file_mounts"].values()
    install = " ".join(cluster["setup_commands"])
    script = (ROOT / "setup.sh").read_text() if "./setup.sh" in install else install
    assert "-c constraints.txt" in script
    pins = [
        Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("#", "")
    ]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    assert "build/cluster" in (ROOT / "Makefile").read_text()


def clusters(name: str) -> Iterator[dict[str, Any]]:
    """The RayClusters that a file describes, those of its jobs too."""
    for document in yaml.safe_load_all((ROOT / name).read_text()):
        if document["kind"] == "RayJob":
            assert document["apiVersion"] == "ray.io/v1"
            assert set(document["spec"]) <= JOB_FIELDS
            yield {"metadata": document["metadata"], "spec": document["spec"]["rayClusterSpec"]}
        elif document["kind"] == "RayCluster":
            assert document["apiVersion"] == "ray.io/v1"
            yield document


@pytest.mark.parametrize("name", KUBERNETES)
def test_rays_autoscaler_reads_the_kubernetes_files(name: str) -> None:
    (cluster,) = clusters(name)
    spec = cluster["spec"]
    read = _derive_autoscaling_config_from_ray_cr(cluster)  # validates what it has read
    assert read["available_node_types"]["rollout"]["resources"]["CPU"] >= 4
    if "autoscalerOptions" in spec:
        assert read["available_node_types"]["learner"]["resources"]["GPU"] == 1
        assert read["idle_timeout_minutes"] == 5
    assert set(spec) <= CLUSTER_FIELDS
    assert set(spec["headGroupSpec"]) <= HEAD_FIELDS
    for group in spec["workerGroupSpecs"]:
        assert set(group) <= WORKER_FIELDS
        assert group["minReplicas"] <= group["maxReplicas"]


@pytest.mark.parametrize("name", KUBERNETES)
def test_the_kubernetes_files_demand_the_token_and_fit_together(name: str) -> None:
    (cluster,) = clusters(name)
    spec = cluster["spec"]
    assert spec["rayVersion"] == ray.__version__
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"].get("serviceType", "ClusterIP") == "ClusterIP"
    if name.endswith("cluster.yaml"):
        assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] in (f"REGISTRY/rlhf-ray:{version}-cpu", f"REGISTRY/rlhf-ray:{version}-gpu")
        assert ("gpu" in container["image"]) == ("nvidia.com/gpu" in container["resources"]["limits"])
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]
        size = int(group["rayStartParams"]["object-store-memory"])
        assert int(shm["sizeLimit"].removesuffix("Mi")) * 2**20 > size
        assert not any("RAY_AUTH" in variable["name"] for variable in container["env"])  # KubeRay sets it


def test_the_image_has_our_ray() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert f"ARG RAY={ray.__version__}-py311-cpu\n" in dockerfile
    assert "-c constraints.txt" in dockerfile
