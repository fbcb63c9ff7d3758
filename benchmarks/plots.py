"""Results as pictures: one for each case, and one of all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.model import Figures, ScenarioResult
from benchmarks.report import reference

OVERVIEW = "overview.png"
DPI = 110
#: Our contenders in blues, by their order; colours of peers follow their order.
OURS = ("#08519c", "#4292c6", "#9ecae1")
OTHERS = tuple(to_hex(colour) for colour in colormaps["tab20"].colors[2:])
#: Markers that distinguish contenders of one colour.
MARKS = "osD^"
TIME, MEMORY = "time (median), s", "memory at its peak, MB"
LEAST_SECONDS, LEAST_MB = 1e-4, 1.0


def write(folder: Path, results: Sequence[ScenarioResult]) -> list[Path]:
    """Draw each case, and an overview; return the paths of the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for case, group in groupby(results, lambda result: result.case):
        members = list(group)
        figure = _lines(members) if members[0].axis else _bars(members)
        written.append(_save(figure, folder / f"{case}.png"))
    compared = [result for result in results if not result.axis and _ratios(result)]
    if compared:
        written.append(_save(_overview(compared), folder / OVERVIEW))
    return written


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    return path


def _colours(results: Sequence[ScenarioResult]) -> dict[str, str]:
    """One colour for each contender of a picture."""
    order: dict[str, bool] = {}
    for result in results:
        for one in result.figures:
            order.setdefault(one.contender, one.is_ours)
    ours = [name for name, is_ours in order.items() if is_ours]
    others = [name for name, is_ours in order.items() if not is_ours]
    return {
        **{name: OURS[i % len(OURS)] for i, name in enumerate(ours)},
        **{name: OTHERS[i % len(OTHERS)] for i, name in enumerate(others)},
    }


def _bars(results: Sequence[ScenarioResult]) -> Figure:
    """Medians with their spread, one panel for each scenario."""
    colours = _colours(results)
    heights = [len(result.figures) * 0.3 + 0.9 for result in results]
    figure = Figure(figsize=(8, sum(heights)), layout="constrained")
    panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)
    for (panel,), result in zip(panels, results, strict=True):
        for place, one in enumerate(result.figures):
            if one.seconds:
                panel.barh(place, one.median * 1e3, color=colours[one.contender], xerr=_spread(one))
            else:
                panel.annotate("failed", (0, place), va="center")
        panel.set_yticks(range(len(result.figures)), [one.contender for one in result.figures])
        panel.invert_yaxis()
        panel.set_title(f"{result.case}: {result.scenario}", fontsize="medium")
        panel.set_xlabel("ms (median, min .. max)")
    return figure


def _spread(one: Figures) -> Any:
    return [
        [(one.median - min(one.seconds)) * 1e3],
        [(max(one.seconds) - one.median) * 1e3],
    ]


def _lines(results: Sequence[ScenarioResult]) -> Figure:
    """Each measure over the growing quantity, with the slope of each line."""
    colours = _colours(results)
    names = measures(results)
    rows = -(-len(names) // 2)
    figure = Figure(figsize=(12, 4 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        for contender, colour in colours.items():
            points = line(results, contender, name)
            if points:
                label = f"{contender}: {slope(points):.2f}" if points[1:] else contender
                panel.plot(*zip(*points, strict=True), marker="o", label=label, color=colour)
        panel.set(xscale="log", yscale="log", xlabel=results[0].axis or "", ylabel=name)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small", title="slope of the upper half", title_fontsize="small")
    for panel in panels:
        panel.set_axis_off()
    figure.suptitle(results[0].case)
    return figure


def measures(results: Sequence[ScenarioResult]) -> list[str]:
    """The measures with lines: time, memory, and further figures of a case."""
    every = (name for result in results for one in result.figures for name in one.counts)
    return [TIME, MEMORY, *dict.fromkeys(every)]


def line(
    results: Sequence[ScenarioResult], contender: str, measure: str
) -> list[tuple[float, float]]:
    """A measure of one contender, over the growing quantity."""
    return [
        (result.point, _measured(one, measure))
        for result in results
        for one in result.figures
        if one.contender == contender and one.seconds and result.point is not None
    ]


def _measured(one: Figures, measure: str) -> float:
    counts = {TIME: one.median, MEMORY: one.growth / 1e6, **one.counts}
    # smaller values are noise, or have no logarithm
    return max(counts[measure], LEAST_MB if measure.endswith("MB") else LEAST_SECONDS)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of growth, fitted to the upper half of the points."""
    along, up = np.log([*zip(*points[(len(points) - 1) // 2 :], strict=True)])
    return float(np.polyfit(along, up, 1)[0])


def _overview(results: Sequence[ScenarioResult]) -> Figure:
    """Times of peers relative to ours, one row for each scenario."""
    colours = _colours(results)
    figure = Figure(figsize=(8, 0.3 * len(results) + 1.5), layout="constrained")
    panel = figure.subplots()
    seen: dict[str, str] = {}
    for place, result in enumerate(results):
        for name, ratio in _ratios(result).items():
            label = None if name in seen else name
            mark = seen.setdefault(name, MARKS[len(seen) // len(OTHERS) % len(MARKS)])
            panel.plot(ratio, place, mark, color=colours[name], label=label)
    panel.axvline(1, color=OURS[0])
    panel.set_xscale("log")
    # labels of all minor ticks overlap where ratios are within some powers of ten
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_yticks(range(len(results)), [f"{one.case}: {one.scenario}" for one in results])
    panel.invert_yaxis()
    panel.set_xlabel("time / time of b2nd_dask (right of the line: slower)")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _ratios(result: ScenarioResult) -> dict[str, float]:
    ours = reference(result)
    if ours is None:
        return {}
    return {
        one.contender: one.median / ours.median
        for one in result.figures
        if one.seconds and not one.is_ours
    }
