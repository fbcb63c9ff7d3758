"""Draw the pictures of the site: python docs/_figures (after `b2nd-dask demo`, in its folder)."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

import b2nd_dask

STATIC = Path(__file__).parents[1] / "_static"
STORED, BLOCK, CONSTANT, LINE = "#1098ad", "#f08c00", "#f1f3f5", "#495057"


def land_by_chunk(frame: b2nd_dask.Frame) -> np.ndarray:
    """The share of land in each chunk: 0 and 1 are the chunks that repeat one value."""
    x = b2nd_dask.from_b2nd(frame)
    return x.map_blocks(lambda block: block.mean(keepdims=True), chunks=(1, 1)).compute()


def chunk_map(path: str) -> None:
    """Draw the land mask beside its chunks."""
    frame = b2nd_dask.open_b2nd(path)
    share = land_by_chunk(frame)
    constant = (share == 0) | (share == 1)
    land = b2nd_dask.from_b2nd(frame)[::60, ::60].compute()
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 2.9), layout="constrained")
    extent = (0, land.shape[1], land.shape[0], 0)
    left.imshow(land, cmap=ListedColormap(["#e7f5ff", "#7f9a65"]), extent=extent)
    left.set_title("the array: 21,600 x 43,200 cells, 933 MB", fontsize=10)
    right.imshow(constant, cmap=ListedColormap([STORED, CONSTANT]), extent=extent)
    stored = int((~constant).sum())
    title = f"its {constant.size:,} chunks: {stored} are read, {constant.mean():.0%} are constant"
    right.set_title(title, fontsize=10)
    for axes in (left, right):
        axes.set_xticks([])
        axes.set_yticks([])
    fig.savefig(STATIC / "land-chunks.png", dpi=110)


def _grid(axes: Axes, touched: set[tuple[int, int]], title: str) -> None:
    """Draw 3 x 4 chunks of 4 x 4 blocks; two are constants."""
    constants = {(0, 0), (2, 3)}
    for row in range(3):
        for column in range(4):
            chunk = (row, column)
            color = CONSTANT if chunk in constants else "#c5f0f5"
            axes.add_patch(Rectangle((column * 4, row * 4), 4, 4, fc=color, ec="none"))
            for block in touched:
                if chunk not in constants and (block[0] // 4, block[1] // 4) == chunk:
                    axes.add_patch(Rectangle((block[1], block[0]), 1, 1, fc=BLOCK, ec="none"))
    for line in range(17):
        axes.axvline(line, color=LINE, lw=1.6 if line % 4 == 0 else 0.3)
    for line in range(13):
        axes.axhline(line, color=LINE, lw=1.6 if line % 4 == 0 else 0.3)
    axes.set(xlim=(-0.1, 16.1), ylim=(12.1, -0.1), aspect="equal", xticks=[], yticks=[])
    axes.set_frame_on(False)
    axes.set_title(title, fontsize=11, family="monospace")


def blocks() -> None:
    """Draw which blocks a column and a sum decode."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    _grid(left, {(row, 5) for row in range(12)}, "x[:, 22]")
    everything = {(row, column) for row in range(12) for column in range(16)}
    _grid(right, everything, "x.sum()")
    fig.savefig(STATIC / "blocks.svg", metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    blocks()
    chunk_map("demo-output/land.b2nd")
