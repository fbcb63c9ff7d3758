"""What layers of a graph compute of each block of another one, before dask fuses them."""

from __future__ import annotations

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.calls.expression import (
    MAX_STEPS,
    Node,
    NotUnderstoodError,
    Read,
    Scope,
)


def source_of(graph: HighLevelGraph, layers: Layers, name: str) -> str | None:
    """The one layer of elements of a frame that a layer is a function of, block by block.

    None where there are several, or something else is in between; also where axes are exchanged, or
    blocks have arguments of their own.
    """
    found = set()
    seen, todo = {name}, [name]
    while todo:
        layer = todo.pop()
        inputs = layers.inputs(layer)
        in_order = tuple(range(layers.ndim(layer)))
        if not inputs or any(axes != in_order for _, axes in inputs):
            return None
        if getattr(graph.layers[layer], "io_deps", None):
            return None
        for below in {below for below, _ in inputs} - seen:
            seen.add(below)
            if layers.frame(layers.view(below).base) is not None:
                found.add(below)
            elif graph.dependencies[below]:
                todo.append(below)
    return found.pop() if len(found) == 1 else None


def block_expression(graph: HighLevelGraph, name: str, source: str, read: Read) -> Node | None:
    """What a layer computes of the first block of its source, and so of each.

    None of more than `MAX_STEPS` tasks, or where one of them is not understood.

    Parameters
    ----------
    source : str
        As `source_of` says.
    read : Read
        Stands for that block.
    """
    corner = (0,) * read.region.frame.ndim
    tasks: dict[Key, GraphNode] = {}
    todo = [name]
    while todo:
        layer = todo.pop()
        if (layer, *corner) not in tasks and layer != source:
            # the task of one block alone
            block, _ = graph.layers[layer].cull({(layer, *corner)}, set())
            tasks.update(dict(block))
            todo += graph.dependencies[layer]
            if len(tasks) > MAX_STEPS:
                return None
    try:
        return Scope(tasks, {(source, *corner): read}, [None] * len(tasks)).named((name, *corner))
    except NotUnderstoodError:
        return None
