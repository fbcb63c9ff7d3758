"""Fixtures and settings that all tests share."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest_plugins = ["tests.servers"]

# Writing a frame takes milliseconds or, on a busy disk, seconds: no deadline. The default profile
# draws the same examples in every run; "long" (HYPOTHESIS_PROFILE=long) looks for new ones. Most
# examples are variations that Hypothesis makes of the one before, so that fewer would be too few.
hypothesis.settings.register_profile("default", max_examples=150, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=3000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def fresh_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Give a function that gives a path never given before, for one example of a property each.

    A path used twice would meet frames that are still cached for it.
    """
    folder = tmp_path_factory.mktemp("frames")
    numbers = itertools.count()
    return lambda: folder / f"{next(numbers)}.b2nd"
