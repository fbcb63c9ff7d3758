"""``x[x > t]`` of several axes: of chunks in which the mask chooses nothing no elements are read.

dask flattens elements and mask first, and so cuts chunks into rows and puts these together. Here
the elements get layers of their own from the read on, under other names: what else reads the frame
gets all of it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.frame.read.settled import Settles
from b2nd_dask.graph._dask_compat import (
    ArraySliceDep,
    GraphNode,
    block_function,
    blockwise,
    getter,
)
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.calls.elementwise import unwrapped
from b2nd_dask.graph.optimize.calls.expression import Read, is_among
from b2nd_dask.graph.optimize.calls.layer_expression import block_expression, source_of
from b2nd_dask.graph.optimize.calls.settling import CHOOSING, never_chosen
from b2nd_dask.graph.optimize.rules.rule import LayerRewrite
from b2nd_dask.graph.read.blocks import FrameBlocks, FrameRegion, reading_layer, reading_of

#: Chunks in doubt are read twice, for the mask and for the elements.
_LEAST_SETTLED = 0.5


def masked_layers(graph: HighLevelGraph, output_keys: set[Key]) -> HighLevelGraph | None:
    """Let elements that masks choose be read apart from the masks; None where there are none."""
    layers = Layers(graph)
    made: dict[str, Any] = {}
    below: dict[str, set[str]] = {}
    for name in graph.layers:
        masked = _masked(graph, layers, name)
        if masked is not None:
            _add_layers(graph, name, masked, made, below)
    if not made:
        return None
    return HighLevelGraph({**graph.layers, **made}, {**graph.dependencies, **below})


class _Masked(NamedTuple):
    """What a layer that chooses elements of a frame by a mask does."""

    moves: list[str]
    """The layers that move the elements, from the last one to the first."""
    source: str
    """The layer that reads them."""
    blocks: FrameBlocks
    condition: Settles
    """When the mask chooses nothing."""


def _masked(graph: HighLevelGraph, layers: Layers, name: str) -> _Masked | None:
    """Parse a layer; None for those of another kind, and where most chunks are in doubt."""
    layer: Any = graph.layers[name]
    func = block_function(layer)
    if func is None or not is_among(unwrapped(func, layer.task.kwargs)[0], CHOOSING):
        return None
    inputs = layers.inputs(name) or []
    if len(inputs) != 2 or len(layer.indices) != 2:
        return None
    *moves, source = _moved(layers, inputs[0][0])
    mask = _moved(layers, inputs[1][0])[-1]
    of_mask = source_of(graph, layers, mask) or ""
    blocks, masking = (reading_of(graph.layers.get(layer)) for layer in (source, of_mask))
    # a rechunk may read either in other blocks
    if not moves or not isinstance(blocks, FrameBlocks) or not isinstance(masking, FrameBlocks):
        return None
    if masking.frame is not blocks.frame:
        return None
    read = Read(FrameRegion(blocks.frame), tuple(slice(0, n) for n, *_ in masking.chunks))
    expression = block_expression(graph, mask, of_mask, read)
    condition = None if expression is None else never_chosen(expression, read)
    if condition is None or blocks.frame.settled_share(condition) < _LEAST_SETTLED:
        return None
    return _Masked(moves, source, blocks, condition)


def _moved(layers: Layers, name: str) -> list[str]:
    """A layer, and the layers below that have the same elements in the same order."""
    names = [name]
    while (below := layers.moved_from(names[-1])) is not None:
        names.append(below)
    return names


def _add_layers(
    graph: HighLevelGraph,
    name: str,
    masked: _Masked,
    made: dict[str, Any],
    below: dict[str, set[str]],
) -> None:
    """Make the layers of the elements anew, down to the read, and the one that chooses."""
    token = tokenize(name)
    renamed: dict[str, str] = {masked.source: _renamed(masked.source, token)}
    source = renamed[masked.source]
    arguments = [masked.blocks.settled_by(masked.condition), ArraySliceDep(masked.blocks.chunks)]
    made[source], below[source] = reading_layer(getter, arguments, source), set()
    for old in reversed(masked.moves):
        tasks: dict[Any, Any] = dict(graph.layers[old])
        renamed |= {key[0]: _renamed(key[0], token) for key in tasks}
        made[renamed[old]] = {
            (renamed[key[0]], *key[1:]): _with_names(task, renamed) for key, task in tasks.items()
        }
        below[renamed[old]] = {renamed[used] for used in graph.dependencies[old]}
    layer: Any = graph.layers[name]
    (elements, axes), (mask, of_mask) = layer.indices
    moved = renamed[elements]
    blocks = {moved: layer.numblocks[elements], mask: layer.numblocks[mask]}
    made[name] = blockwise(
        layer.task.func, name, layer.output_indices, moved, axes, mask, of_mask,
        numblocks=blocks, **{k: _plain(v) for k, v in layer.task.kwargs.items()},
    )  # fmt: skip
    below[name] = {moved, mask}


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _renamed(name: str, token: str) -> str:
    """Another name of the same form, which tells what a layer does."""
    return re.sub(r"-[0-9a-f]{32}$", "", name) + f"-{tokenize(name, token)}"


def _with_names(task: Any, names: dict[str, str]) -> Any:
    """A task with other names of layers in the keys that it uses."""
    if isinstance(task, GraphNode):
        keys: Any = {key: _with_names(key, names) for key in task.dependencies}
        return task.substitute(keys, key=_with_names(task.key, names))
    if isinstance(task, list):
        return [_with_names(part, names) for part in task]
    if not isinstance(task, tuple):
        return task
    if task and isinstance(task[0], str) and task[0] in names:
        return (names[task[0]], *task[1:])
    return tuple(_with_names(part, names) for part in task)


MASKED_LAYERS = LayerRewrite(
    "statistics_masks",
    "Chunks in which a mask chooses nothing are not read for their elements either.",
    masked_layers,
)
