"""Renderer of the project's kustomizations. It supports only the features that they use.

    python -m tests.deploy.render deploy/k8s/overlays/gpu-single

These are ``resources``, ``components``, ``patches`` by path, and ConfigMaps from files. A patch
merges mappings key by key, null removes a key, lists are replaced, except lists with a merge
key: those are merged item by item. Other features raise an error. test_rendering.py compares the
result with that of kubectl if it is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "configMapGenerator"}
_OPTIONS = {"disableNameSuffixHash", "labels"}
#: Lists that the API merges by a key (the API's ``patchMergeKey``).
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


class Unsupported(Exception):
    """A kustomization uses an unsupported feature."""


def render(folder: Path) -> list[Object]:
    """The objects that ``kubectl apply -k folder`` would apply."""
    return _apply(folder, [])


def identity(thing: Object) -> tuple[str, str]:
    """The key of an object: kind and name, since all are in one namespace."""
    return thing["kind"], thing["metadata"]["name"]


def _apply(folder: Path, before: list[Object]) -> list[Object]:
    (kustomization,) = _load(folder / "kustomization.yaml")
    if unknown := set(kustomization) - _KNOWN:
        raise Unsupported(f"{folder}: {', '.join(sorted(unknown))}")
    objects = list(before)
    for name in kustomization.get("resources", []):
        path = folder / name
        objects += render(path) if path.is_dir() else _load(path)
    objects += [_config_map(folder, made) for made in kustomization.get("configMapGenerator", [])]
    for name in kustomization.get("components", []):
        objects = _apply(folder / name, objects)
    for patch in kustomization.get("patches", []):
        if set(patch) != {"path"}:
            raise Unsupported(f"{folder}: a patch with {', '.join(sorted(patch))}")
        for change in _load(folder / patch["path"]):
            (index,) = [i for i, o in enumerate(objects) if identity(o) == identity(change)]
            objects[index] = merge(objects[index], change)
    return objects


def _config_map(folder: Path, made: Object) -> Object:
    options = made.get("options", {})
    if set(made) - {"name", "namespace", "files", "options"} or set(options) - _OPTIONS:
        raise Unsupported(f"{folder}: a generator with {', '.join(sorted({*made, *options}))}")
    if options.get("disableNameSuffixHash") is not True:
        raise Unsupported(f"{folder}: a generated name with a hash")
    metadata = {key: made[key] for key in ("name", "namespace") if key in made}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata | {"labels": options.get("labels", {})},
        "data": {name: (folder / name).read_text() for name in made["files"]},
    }


def _load(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def merge(old: Any, new: Any, field: str = "") -> Any:
    """Merge ``new`` into ``old``; ``field`` is the key under which both are found."""
    if isinstance(old, dict) and isinstance(new, dict):
        kept = {k: v for k, v in old.items() if k not in new}
        return kept | {k: merge(old.get(k), v, k) for k, v in new.items() if v is not None}
    key = _MERGE_KEYS.get(field)
    if isinstance(old, list) and isinstance(new, list) and key:
        named = {item[key]: item for item in old}
        for item in new:
            named[item[key]] = merge(named.get(item[key]), item)
        return list(named.values())
    return new


if __name__ == "__main__":
    print(yaml.safe_dump_all(render(Path(sys.argv[1])), sort_keys=False))
