"""The notebooks run completely, show figures, and are stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="they need the extra 'notebooks'")
nbformat = pytest.importorskip("nbformat")
traitlets = pytest.importorskip("traitlets.config")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def execute(notebook: Any, folder: Path) -> None:
    """Run a notebook in a fresh kernel: in an empty folder, with warnings as errors."""
    strict = nbformat.v4.new_code_cell("import warnings; warnings.simplefilter('error')")
    # warnings at the end of a kernel are not ours
    lenient = nbformat.v4.new_code_cell("warnings.resetwarnings()")
    notebook.cells = [strict, *notebook.cells, lenient]
    (folder / "temporary").mkdir()
    (folder / "current").mkdir()
    # by sockets that are files: free ports may be taken when the kernel opens them; names of such
    # files have at most about 100 characters
    kernel = {"transport": "ipc", "ip": f"{folder}/kernel"}
    client = nbclient.NotebookClient(
        notebook,
        config=traitlets.Config({"KernelManager": kernel}),
        timeout=600,
        startup_timeout=300,
        resources={"metadata": {"path": f"{folder}/current"}},
    )
    client.execute(env={**os.environ, "TMPDIR": f"{folder}/temporary"})


@pytest.mark.slow
@each_notebook
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
        left = [p for name in ("temporary", "current") for p in Path(folder, name).iterdir()]
        assert left == []
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@each_notebook
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@each_notebook
def test_notebook_tells_a_story(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert "**The question:**" in cells[0].source
    prose = sum(cell.cell_type == "markdown" for cell in cells)
    assert prose >= (len(cells) - prose) / 2
    assert any(cell.source.startswith("## The answer") for cell in cells)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
