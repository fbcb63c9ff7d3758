"""Make the pictures of looking.md: python docs/_figures/looking.py (minutes; needs chromium).

Of the global land mask and of the MNI template of the brain, which come with the packages
`global-land-mask` and `nilearn`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import numpy as np
import xarray as xr
from nilearn.datasets import load_mni152_template

import b2nd_dask
from b2nd_dask.edges.cli.demo import find_mask, land_bands, write_frame

STATIC = Path(__file__).parents[1] / "_static" / "looking"
_CHROMIUM = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
)


def screenshot(shown: object, name: str, size: str, *, dark: bool = False) -> None:
    """Save what a notebook shows of an object."""
    theme, css = ("dark", "background:#121212;color:#ddd;") if dark else ("light", "")
    with tempfile.TemporaryDirectory() as profile:
        page = Path(profile, "page.html")
        html = shown._repr_html_().replace(tempfile.gettempdir() + "/b2nd-looking", "/data")
        body = f'<body style="font-family:sans-serif;margin:12px;{css}">{html}'
        page.write_text(f'<!doctype html><html data-theme="{theme}"><meta charset="utf-8">{body}')
        subprocess.run(
            [
                shutil.which("chromium") or "chromium",
                *_CHROMIUM.split(),
                f"--user-data-dir={profile}",
                f"--screenshot={STATIC / name}",
                f"--window-size={size}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def save(shown: object, name: str) -> None:
    """Save a plot."""
    figure = getattr(shown, "figure", shown)
    figure.savefig(STATIC / name, dpi=80)


def main() -> None:
    """Make the frames in a folder that is removed, and the pictures."""
    STATIC.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.gettempdir(), "b2nd-looking")
    folder.mkdir()
    try:
        land, brain = folder / "land.b2nd", folder / "brain.b2nd"
        mask = find_mask()
        if mask is None:
            raise SystemExit("pip install global-land-mask")
        write_frame(land_bands(mask, 720), land, 720)
        b2nd_dask.compact(land)
        template = load_mni152_template(resolution=2)
        values = np.asarray(template.get_fdata(), dtype="f4")
        labels = {"dims": ["x", "y", "z"], "long_name": "MNI152 template", "units": "1"}
        b2nd_dask.to_b2nd(values, brain, chunks=(16, 32, 32), vlmeta=labels)
        screenshot(b2nd_dask.open_b2nd(land), "land.png", "820,500")
        screenshot(b2nd_dask.open_b2nd(brain), "brain-dark.png", "880,625", dark=True)
        save(b2nd_dask.plot.chunk_map(land), "land-kinds.png")
        save(b2nd_dask.plot.chunk_map(brain, by="cbytes"), "brain-bytes.png")
        save(b2nd_dask.plot.compression([land, brain]), "compression.png")
        x = xr.DataArray(
            b2nd_dask.from_b2nd(land, chunks="auto"),
            dims=("lat", "lon"),
            coords={
                "lat": ("lat", 90 - (np.arange(21600) + 0.5) / 120, {"units": "degrees_north"}),
                "lon": ("lon", -180 + (np.arange(43200) + 0.5) / 120, {"units": "degrees_east"}),
            },
            name="land",
        )
        save(b2nd_dask.plot.thumbnail(x, cmap="YlGn"), "land-thumbnail.png")
        save(b2nd_dask.plot.slices(brain, axis="z", count=10, cmap="gray"), "brain-slices.png")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
