"""The manifest renderer against kustomize."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    with_components,
)
from tests.deploy.render import Unsupported, identity, merge, render


def in_any_order(thing: Any) -> Any:
    """``thing`` with sorted lists: the API ignores the order of lists with a merge key."""
    if isinstance(thing, dict):
        return {key: in_any_order(value) for key, value in thing.items()}
    if isinstance(thing, list):
        members = [in_any_order(item) for item in thing]
        return sorted(members, key=lambda member: json.dumps(member, sort_keys=True))
    return thing


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendering_equals_kustomize(overlay: str, tmp_path: Path) -> None:
    for folder in (K8S / "overlays" / overlay, with_components(tmp_path, overlay)):
        done = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
        theirs = {identity(o): in_any_order(o) for o in yaml.safe_load_all(done.stdout)}
        assert {identity(o): in_any_order(o) for o in render(folder)} == theirs


def test_renderer_refuses_unknown_field(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: a-\n")
    with pytest.raises(Unsupported, match="namePrefix"):
        render(tmp_path)


def test_patch_merges_named_lists_and_removes_nulls() -> None:
    old = {"env": [{"name": "a", "value": 1}, {"name": "b"}], "args": ["x"], "gone": 1}
    new = {"env": [{"name": "a", "value": 2}], "args": ["y"], "gone": None}
    assert merge(old, new) == {"env": [{"name": "a", "value": 2}, {"name": "b"}], "args": ["y"]}
