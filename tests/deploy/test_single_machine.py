"""The Compose files and the systemd unit, without Docker and without a running systemd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import PREFIX, Settings, load_settings
from tests.deploy.balancer import CONFIG
from tests.deploy.container import ROOT, image_environment

UNIT = ROOT / "deploy" / "systemd" / "talkwire.service"
TEMPLATE, INSTANCE = UNIT.with_name("talkwire@.service"), UNIT.with_name("instance.sh")


def composed(*names: str) -> dict[str, Any]:
    """The service of Compose files, a later one's mappings over an earlier one's."""
    merged: dict[str, Any] = {}
    for name in names:
        file = ROOT / "deploy" / "docker" / name
        ((service, told),) = yaml.safe_load(file.read_text())["services"].items()
        assert service == "talkwire"
        for key, value in told.items():
            merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
    return merged


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def settings_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings in a container with this environment."""
    for name, value in (image_environment("Dockerfile.cpu") | environment).items():
        if name.startswith(PREFIX):
            monkeypatch.setenv(name, value)
    return load_settings()


def test_compose_opens_the_service_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = composed("compose.yaml")
    build = told["build"]
    context = (ROOT / "deploy" / "docker" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    settings = settings_of(told["environment"], monkeypatch)
    assert (settings.host, settings.auth, settings.api_keys_file) == ("0.0.0.0", "off", None)
    (port,) = told["ports"]
    assert port == f"${{TALKWIRE_LISTEN:-127.0.0.1}}:{settings.port}:{settings.port}"
    assert seconds(told["stop_grace_period"]) > settings.drain_s


def test_compose_with_keys_requires_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told = composed("compose.yaml", "compose.keys.yaml")
    settings = settings_of(told["environment"], monkeypatch)
    assert settings.auth == "auto"
    (volume,) = told["volumes"]
    _, folder, mode = volume.rsplit(":", 2)
    assert settings.api_keys_file == Path(folder) / "keys.json"
    assert mode == "ro"


def gpu_services() -> tuple[dict[str, Any], dict[str, Any]]:
    """The services on GPUs of ``compose.gpus.yaml`` by name, and the balancer."""
    services = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.gpus.yaml").read_text())
    balancer = services["services"].pop("balancer")
    return services["services"], balancer


def test_compose_gives_each_service_a_gpu_and_a_port_of_the_balancer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, balancer = gpu_services()
    addresses, gpus = {}, []
    for name, service in services.items():
        assert service["network_mode"] == balancer["network_mode"] == "host"
        environment = {k: v for k, v in service["environment"].items() if v is not None}
        settings = settings_of(environment, monkeypatch)
        # loopback alone, so that no key is needed
        assert (settings.host, settings.auth) == ("127.0.0.1", "auto")
        assert seconds(service["stop_grace_period"]) > settings.drain_s
        addresses[name] = f"127.0.0.1:{settings.port}"
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        gpus += device["device_ids"]
    assert gpus == [name.removeprefix("gpu") for name in services]
    assert all(each == addresses for each in balanced())
    # one starts after the other
    first, *others = services
    assert "depends_on" not in services[first]
    assert all(services[name]["depends_on"] for name in others)
    config, target, mode = balancer["volumes"][0].split(":")
    assert (ROOT / "deploy" / "docker" / config).resolve() == CONFIG
    assert (target, mode) == ("/usr/local/etc/haproxy/haproxy.cfg", "ro")


def balanced() -> list[dict[str, str]]:
    """The services' addresses by name in each backend of the balancer."""
    backends = re.split(r"^backend ", CONFIG.read_text(), flags=re.MULTILINE)[1:]
    server = r"^ *server (\w+) \"\$\{TALKWIRE_\w+-([\d.:]+)\}\"$"
    found = [dict(re.findall(server, backend, re.MULTILINE)) for backend in backends]
    assert len(found) == 2
    assert all(found)
    return found


def directives(unit: Path, instance: str = "") -> dict[str, list[str]]:
    """The values of each directive of a unit, for an instance of a template."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value.replace("%i", instance))
    return found


def test_instances_of_systemd_have_a_gpu_and_a_port_of_the_balancer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = {}
    for number in range(2):
        told = directives(TEMPLATE, str(number))
        environment = dict(
            pair.split("=", 1) for line in told["Environment"] for pair in line.split()
        )
        assert environment["CUDA_VISIBLE_DEVICES"] == str(number)
        settings = settings_of(environment, monkeypatch)
        addresses[f"gpu{number}"] = f"{settings.host}:{settings.port}"
        assert int(told["TimeoutStopSec"][0]) > settings.drain_s
    assert all(each == addresses for each in balanced())


def test_instances_of_systemd_are_confined_as_the_single_service_with_a_gpu() -> None:
    """What the template lacks is what the single unit says to remove for a GPU."""
    single, template = directives(UNIT), directives(TEMPLATE)
    (text,) = re.findall(r"^# Remove these two lines.*\n(.*)\n(.*)$", UNIT.read_text(), re.M)
    removed = {line.partition("=")[0] for line in text}
    assert removed == {"PrivateDevices", "ProtectClock"}
    own = {"Description", "After", "ExecStart", "Environment", "EnvironmentFile"}
    same = set(single) - removed - own
    assert {name: template.get(name) for name in same} == {name: single[name] for name in same}
    assert not removed & set(template)
    folder = Path(template["WorkingDirectory"][0])
    for name, verb in (("ExecStart", "run"), ("ExecStartPost", "wait")):
        program, argument, *_ = template[name][0].split()
        assert ROOT / Path(program).relative_to(folder) == INSTANCE
        assert argument == verb
    assert template["ExecStart"][0].split()[2:] == single["ExecStart"][0].split()[1:]


def test_unit_of_systemd_starts_the_service_and_lets_it_drain() -> None:
    service = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    program, *arguments = service["ExecStart"].split()
    assert Path(program).relative_to(service["WorkingDirectory"]) == Path(".venv/bin/talkwire")
    assert arguments == ["serve", "--config", "/etc/talkwire/talkwire.toml"]
    assert int(service["TimeoutStopSec"]) > Settings().drain_s
    named = re.findall(rf"{PREFIX}(\w+)=", service["Environment"])
    assert {name.lower() for name in named} <= set(Settings.model_fields)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize(("file", "name"), [(UNIT, UNIT.name), (TEMPLATE, "talkwire@0.service")])
def test_unit_of_systemd_is_valid_and_confined(file: Path, name: str, tmp_path: Path) -> None:
    unit = tmp_path / name
    unit.write_text(re.sub(r"(ExecStart(?:Post)?)=\S+", r"\1=/bin/true", file.read_text()))
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", unit],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
