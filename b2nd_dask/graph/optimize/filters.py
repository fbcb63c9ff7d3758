"""``x[x > t]`` of several axes: of chunks in which the mask chooses nothing no elements are read.

dask flattens elements and mask first, and so cuts chunks into rows and puts these together. Here
the elements get layers of their own from the read on, under other names: what else reads the frame
gets all of it.
"""

from __future__ import annotations

from typing import Any

from dask.base import tokenize

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.pruning import Predicate
from b2nd_dask.graph._dask_compat import block_function, blockwise
from b2nd_dask.graph.expression.elementwise import FILTERS, is_among, unwrapped
from b2nd_dask.graph.expression.nodes import Moved, Node, Read
from b2nd_dask.graph.expression.predicates import false_mask
from b2nd_dask.graph.expression.program import compile_tree
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.layers.moves import as_task
from b2nd_dask.graph.optimize.lower import Lowered, lowered_tree
from b2nd_dask.graph.optimize.names import is_renamable, own_name, with_names

#: Chunks in doubt are read twice, for the mask and for the elements.
_LEAST_PRUNED = 0.5


def lowered_filter(layers: Layers, name: str) -> Lowered | None:
    """Layers that read the elements that a mask chooses apart from the mask; None of others."""
    layer: Any = layers.graph.layers[name]
    func = block_function(layer)
    if func is None or not is_among(unwrapped(func, layer.task.kwargs)[0], FILTERS):
        return None
    if len(layer.indices) != 2 or any(labels is None for _, labels in layer.indices):
        return None
    moves, read = _moved(layers, layer.indices[0][0])
    _, mask = _moved(layers, layer.indices[1][0])
    if not moves or not isinstance(read, Read) or isinstance(read.source, JoinedReference):
        return None
    predicate = _predicate(mask, read)
    if not all(is_renamable(layers.graph.layers[each]) for each in moves):
        return None
    if predicate is None or read.source.pruned_share(predicate) < _LEAST_PRUNED:
        return None
    return _read_apart(layers, name, moves, read, predicate)


def _predicate(mask: Node, read: Read) -> Predicate | None:
    """When a mask of the same frame chooses nothing of a chunk, whatever blocks it has."""
    compiled = compile_tree(mask)
    same = compiled is not None and (
        compiled.read.source is read.source
        and compiled.read.positions == read.positions
        and compiled.read.axes == read.axes
    )
    return false_mask(mask, compiled.read) if compiled and same else None


def _moved(layers: Layers, name: str) -> tuple[list[str], Node]:
    """Layers that have the same elements in the same order, from the top, and what is below."""
    names = []
    node = layers.nodes[name]
    while isinstance(node, Moved) and node.move is None:
        names.append(node.layers[0])
        node = node.child
    return names, node


def _read_apart(
    layers: Layers, name: str, moves: list[str], read: Read, predicate: Predicate
) -> Lowered:
    """Make the layers of the elements anew, down to the read, and the one that chooses."""
    source, token = read.layers[0], tokenize(name)
    renamed = {source: own_name(source, token)}
    made, below = lowered_tree(renamed[source], read, predicate, views=False) or Lowered({}, {})
    for old in reversed(moves):
        tasks: dict[Any, Any] = dict(layers.graph.layers[old])
        renamed |= {key[0]: own_name(key[0], token) for key in tasks}
        moved_tasks = [with_names(as_task(*each), renamed) for each in tasks.items()]
        made[renamed[old]] = {task.key: task for task in moved_tasks}
        below[renamed[old]] = {renamed[used] for used in layers.graph.dependencies[old]}
    layer: Any = layers.graph.layers[name]
    (elements, axes), (mask, of_mask) = layer.indices
    moved = renamed[elements]
    blocks = {moved: layer.numblocks[elements], mask: layer.numblocks[mask]}
    chosen = blockwise(
        layer.task.func, name, layer.output_indices, moved, axes, mask, of_mask,
        numblocks=blocks, **layer.task.kwargs,
    )  # fmt: skip
    return Lowered({name: chosen, **made}, {name: {moved, mask}, **below})
