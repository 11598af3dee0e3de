"""The multi-node overlay: head and workers match each other and the service's settings."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from talker.settings import TalkerSettings
from talker.vllm_setup import executor
from tests.deploy.manifests import Objects, configured, pod, rendered
from tests.deploy.render import Object


@pytest.fixture(scope="module")
def group() -> Objects:
    return rendered("multi-node")


def workers(group: Objects) -> Object:
    return group["StatefulSet", "talkwire-worker"]


def worker_pod(group: Objects) -> Object:
    return workers(group)["spec"]["template"]["spec"]


def flags(container: Object) -> dict[str, str]:
    """The options of ``ray start`` in a container's command."""
    (line,) = re.findall(r"ray start (.+?)(?: && |$)", " ".join(container["command"][2].split()))
    parted = (word.partition("=") for word in shlex.split(line))
    return {name: value for name, _, value in parted}


def environment(container: Object, group: Objects) -> dict[str, Any]:
    """The container's variables, including the ConfigMap's if it uses them."""
    shared = group["ConfigMap", "talkwire"]["data"] if "envFrom" in container else {}
    own = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    return {**shared, **own}


def gpus(container: Object) -> int:
    resources = container["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"]
    return int(resources["limits"]["nvidia.com/gpu"])


def test_group_gpus_equal_tensor_parallel_size(
    group: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configured(group, monkeypatch)
    (head,), (worker,) = pod(group)["containers"], worker_pod(group)["containers"]
    there = gpus(head) + workers(group)["spec"]["replicas"] * gpus(worker)
    assert there == settings.talker_tensor_parallel_size
    assert settings.talker_data_parallel_size == 1
    for container in (head, worker):
        assert flags(container)["--num-gpus"] == str(gpus(container)), "Ray offers what there is"
    talker = TalkerSettings(
        tensor_parallel_size=settings.talker_tensor_parallel_size,
        distributed_executor=settings.talker_distributed_executor,
    )
    assert executor(talker, on_gpu=True) == "ray"


def test_gateway_has_one_replica_without_surge(group: Objects) -> None:
    gateway = group["Deployment", "talkwire"]["spec"]
    assert gateway["replicas"] == 1
    assert gateway["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_gateway_runs_command_of_image(group: Objects) -> None:
    (head,) = pod(group)["containers"]
    shell, option, script, name = head["command"]
    assert (shell, option) == ("sh", "-c")
    assert script.split(" && ")[-1] == f'exec {name} "$@"'
    assert (name, head["args"]) == ("talkwire", ["serve"])


def test_workers_reach_head_before_it_is_ready(group: Objects) -> None:
    (head,), (worker,) = pod(group)["containers"], worker_pod(group)["containers"]
    assert "--head" in flags(head)
    host, _, port = flags(worker)["--address"].partition(":")
    assert port == flags(head)["--port"]
    service = group["Service", host]["spec"]
    assert service["publishNotReadyAddresses"] is True, "it waits for the workers"
    assert service["clusterIP"] == "None"
    labels = group["Deployment", "talkwire"]["spec"]["template"]["metadata"]["labels"]
    others = workers(group)["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert not service["selector"].items() <= others.items()
    speech = group["Service", "talkwire"]["spec"]["selector"]
    assert not speech.items() <= others.items(), "a worker would be asked to speak"
    (asked,) = {worker[f"{name}Probe"]["tcpSocket"]["port"] for name in ("readiness", "liveness")}
    ports = {one["name"]: str(one["containerPort"]) for one in worker["ports"]}
    assert ports[asked] == flags(worker)["--node-manager-port"]


def test_ray_traffic_is_limited_to_members_with_token(group: Objects) -> None:
    policy = group["NetworkPolicy", "talkwire-ray"]["spec"]
    member = policy["podSelector"]
    assert policy["ingress"] == [{"from": [{"podSelector": member}]}]
    assert policy["egress"][0] == {"to": [{"podSelector": member}]}
    assert {port["port"] for port in policy["egress"][1]["ports"]} == {53}
    for kind, name, spec in (
        ("Deployment", "talkwire", pod(group)),
        ("StatefulSet", "talkwire-worker", worker_pod(group)),
    ):
        labels = group[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert member["matchLabels"].items() <= labels.items()
        (container,) = spec["containers"]
        variables = environment(container, group)
        assert variables["RAY_AUTH_MODE"] == "token"
        assert variables["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert flags(container)["--node-ip-address"] == "$VLLM_HOST_IP"
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "ray"]
        assert variables["RAY_AUTH_TOKEN_PATH"] == f"{mount['mountPath']}/token"
        (volume,) = [v for v in spec["volumes"] if v["name"] == "ray"]
        assert ("Secret", volume["secret"]["secretName"]) not in group, "the operator's"


def test_worker_has_security_and_volumes_of_gateway(group: Objects) -> None:
    ours, theirs = pod(group), worker_pod(group)
    same = ("securityContext", "initContainers", "tolerations", "serviceAccountName")
    for key in (*same, "automountServiceAccountToken", "enableServiceLinks"):
        assert theirs[key] == ours[key], key
    (head,), (worker,) = ours["containers"], theirs["containers"]
    for key in ("image", "securityContext"):
        assert worker[key] == head[key], key
    volumes = {volume["name"]: volume for volume in ours["volumes"]}
    for volume in theirs["volumes"]:
        assert volume == volumes[volume["name"]]
    mounts = {mount["mountPath"]: mount for mount in head["volumeMounts"]}
    for mount in worker["volumeMounts"]:
        assert mount == mounts.pop(mount["mountPath"])
    used = {mount["name"] for mount in worker["volumeMounts"]}
    assert used <= {volume["name"] for volume in theirs["volumes"]}
    assert [mount["name"] for mount in mounts.values()] == ["keys"], "the gateway's own"


def test_worker_grace_period_outlasts_gateway(group: Objects) -> None:
    theirs = worker_pod(group)
    waits_s = theirs["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert waits_s >= pod(group)["terminationGracePeriodSeconds"]
    ray_drains_s = 30
    assert theirs["terminationGracePeriodSeconds"] > waits_s + ray_drains_s
