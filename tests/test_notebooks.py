"""The notebooks run from top to bottom."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

nbclient = pytest.importorskip("nbclient", reason="they need the extra 'notebooks'")
nbformat = pytest.importorskip("nbformat")
traitlets = pytest.importorskip("traitlets.config")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    # by sockets that are files: ports found free may be taken when the kernel opens them; and their
    # names may have about 100 characters
    with TemporaryDirectory() as folder:
        kernel = {"transport": "ipc", "ip": f"{folder}/kernel"}
        config = traitlets.Config({"KernelManager": kernel})
        client = nbclient.NotebookClient(
            notebook, config=config, timeout=600, startup_timeout=300, resources={}
        )
        client.execute()


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
