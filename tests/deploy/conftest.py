"""Fixtures: rendered overlays."""

from __future__ import annotations

import pytest

from tests.deploy.manifests import (
    OVERLAYS,
    Objects,
    rendered,
    with_components,
)
from tests.deploy.render import identity, render


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    return rendered(request.param)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """An operator's overlay of ``cpu-embedded`` with every component."""
    folder = with_components(tmp_path_factory.mktemp("own"), "cpu-embedded")
    return {identity(o): o for o in render(folder)}
