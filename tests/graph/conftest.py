"""Fixtures of tests that write frames."""

import pytest


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.b2nd"


@pytest.fixture(params=[True, False], ids=["contiguous", "sparse"])
def contiguous(request):
    return request.param
