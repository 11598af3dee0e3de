"""Settings for the tests of training: those of all tests."""

from tests import conftest as conftest
