"""Refuse to build a distributable archive of the server.

The server is an application: it runs from its tree, by an editable install (``make install``), or
from its image (deploy/docker). A wheel would put packages called ``service`` and ``codec`` into
somebody's environment, and leave the voice's checkpoint behind. What other programs install is the
client, in clients/python.
"""

from __future__ import annotations

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

_MESSAGE = (
    "talkwire is an application, and is not distributed as a package. Run it from its tree "
    "('make install' there, or 'pip install --no-build-isolation -e .') or build its image "
    "(deploy/docker). For the Python client: pip install ./clients/python"
)


class RefusedWheel(bdist_wheel):
    """The step of an ordinary build; an editable install never takes it."""

    def run(self) -> None:
        """End the build."""
        raise SystemExit(_MESSAGE)


class RefusedSource(sdist):
    """The step that makes a source archive."""

    def run(self) -> None:
        """End the build."""
        raise SystemExit(_MESSAGE)


setup(cmdclass={"bdist_wheel": RefusedWheel, "sdist": RefusedSource})
