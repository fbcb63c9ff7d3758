"""Fixtures and settings that all tests share."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import dask
import hypothesis
import pytest
from distributed import client

from b2nd_dask.storage.read import remote
from tests import forked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest_plugins = ["tests.servers"]

# Writing a frame takes milliseconds or, on a busy disk, seconds: no deadline, and no check that
# drawing is slow. "default" draws the same examples in every run of the same code, as Hypothesis
# draws numbers that occur in it, too; "long" looks for new ones (HYPOTHESIS_PROFILE=long,
# -m hypothesis). Most examples are variations that Hypothesis makes of the one before, so that few
# are enough for the default.
_settings = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("default", _settings, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", _settings, max_examples=3000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A cluster checks for a lost worker after this time, and removes it if it is lost again: after 15
# seconds the check would meet the next worker that a test kills.
dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})

# Processes are forked from one that has imported all modules, which takes seconds in a new one.
forked.preload()
dask.config.set(
    {
        "multiprocessing.context": "forkserver",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
)


def pytest_xdist_auto_num_workers() -> int:
    """Two for each core, since tests wait for disks and processes a third of their time."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="session", autouse=True)
def _scratch_space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give clusters their own directory instead of that of all clusters of the machine."""
    with dask.config.set({"temporary-directory": str(tmp_path_factory.mktemp("scratch"))}):
        yield


@pytest.fixture(scope="session", autouse=True)
def _near_stores() -> Iterator[None]:
    """Make requests to slow stores independent of the load of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "TAIL_AFTER", 3600.0)
        yield


@pytest.fixture
def far_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all stores slow ones."""
    monkeypatch.setattr(remote, "TAIL_AFTER", 0.0)


@pytest.fixture(autouse=True)
def _no_client_of_other_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute in this process, unless the test says otherwise.

    A client that fails to start stays in dask's settings; a computation on it never ends.
    """
    if "cluster" in request.fixturenames:
        yield
        return
    others = dict(client._global_clients)
    current = client._current_client.set(None)
    client._global_clients.clear()
    with dask.config.set(scheduler=None):
        yield
    client._global_clients.update(others)
    client._current_client.reset(current)


@pytest.fixture(scope="session")
def fresh_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a function that returns a new path for each example of a property.

    A path that is used twice may have cached frames.
    """
    folder = tmp_path_factory.mktemp("frames")
    numbers = itertools.count()
    return lambda: folder / f"{next(numbers)}.b2nd"
