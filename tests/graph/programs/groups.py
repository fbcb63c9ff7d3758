"""Groups of lines: each draws one line, or a few, for an array of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.graph.programs import block_tables, chunk_tables, tables

if TYPE_CHECKING:
    from tests.graph.programs.grammar import Drawing
    from tests.graph.programs.values import Value


def elementwise(drawing: Drawing, value: Value) -> None:
    kind = drawing.rng.choices(list(tables.ELEMENTWISE), (5, 4, 2, 1, 4, 1))[0]
    effect = "jumps" if kind == "odd" else kind
    template = drawing.rng.choice(tables.ELEMENTWISE[kind])
    drawing.expression(template, [value], effect, views=True, fresh=kind != "odd")


def move(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.MOVES), [value], "keeps", views=True)


def copy(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.COPIES), [value], "keeps", twice=True)


def index(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.INDICES), [value], "keeps", views=True)


def slices(drawing: Drawing, value: Value) -> None:
    drawing.expression("{a}[{slices}]", [value], "keeps", views=True, fresh=True)


def reduction(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choices(list(tables.REDUCTIONS), (4, 1, 2, 1, 3))[0]
    name = drawing.rng.choice(tables.REDUCTIONS[effect])
    arguments = ["axis={axes}"]
    if drawing.rng.random() < 0.3:
        arguments.append("keepdims=True")
    if drawing.rng.random() < 0.5:
        arguments.append(f"split_every={drawing.rng.choice([2, 3, 16])}")
    if drawing.rng.random() < 0.2 and effect != "keeps":
        dtype = drawing.rng.choice(["f8", "f4", "f2", "i8", "u1", "i1", "c16", ">f8", "?"])
        arguments.append(f"dtype={dtype!r}")
    if name.startswith("moment"):
        arguments.append(f"order={name[-1]}")
    name = name.rstrip("23")
    drawing.expression(f"da.{name}({{a}}, {', '.join(arguments)})", [value], effect)


def other(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choices(list(tables.OTHERS), (6, 2, 4, 1, 4, 5))[0]
    drawing.expression(drawing.rng.choice(tables.OTHERS[effect]), [value], effect, twice=True)


def nothing(drawing: Drawing, value: Value) -> None:
    pass


def parts(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.PARTS), [value], "keeps", twice=True)


def late(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choices(list(tables.LATE), (9, 1))[0]
    drawing.expression(drawing.rng.choice(tables.LATE[effect]), [value], effect, twice=True)


def through(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choices(list(chunk_tables.THROUGH), (6, 2, 1))[0]
    drawing.expression(
        drawing.rng.choice(chunk_tables.THROUGH[effect]), [value], effect, twice=True
    )


def chunks(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(chunk_tables.CHUNKS), [value], "keeps", twice=True)


def unified(drawing: Drawing, value: Value) -> None:
    """Operands of other chunks: the array itself, or another one of the same shape."""
    other = _other(drawing, value)
    if other is not None and drawing.rng.random() < 0.4:
        template = drawing.rng.choice(chunk_tables.UNIFIED_PAIR)
        drawing.expression(template, [value, other], "grows", twice=True)
        return
    effect = drawing.rng.choice(["grows", "grows", "grows", "bins"])
    drawing.expression(
        drawing.rng.choice(chunk_tables.UNIFIED[effect]), [value], effect, twice=True
    )


def blocks(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choice(["keeps", "keeps", "grows"])
    drawing.expression(drawing.rng.choice(block_tables.BLOCKS[effect]), [value], effect, views=True)


def one_block(drawing: Drawing, value: Value) -> None:
    """Each block with an array of one block: of the same array, or of another one."""
    other = _other(drawing, value)
    fitting = drawing.rng.random() < 0.5
    if other is not None and drawing.rng.random() < 0.4:
        table = block_tables.ONE_BLOCK_OF_PAIR
        table = block_tables.FITTING_BLOCK_OF_PAIR if fitting else table
        drawing.expression(drawing.rng.choice(table), [value, other], "grows", twice=True)
    else:
        table = block_tables.FITTING_BLOCK if fitting else block_tables.ONE_BLOCK
        drawing.expression(drawing.rng.choice(table), [value], "grows", twice=True)


def block_info(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(block_tables.BLOCK_INFO), [value], "grows", twice=True)


def blockwise(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(block_tables.BLOCKWISE), [value], "grows", twice=True)


def delayed(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choices(list(block_tables.DELAYED), (2, 2, 3))[0]
    template = drawing.rng.choice(block_tables.DELAYED[effect])
    drawing.expression(template, [value], effect, twice=True)


def in_place(drawing: Drawing, value: Value) -> None:
    # of no axes it may be a scalar, of which a function gets a copy
    used = any(drawing.uses[name] > (name != value.name) for name in value.views)
    if used or drawing.array(value).ndim == 0:
        return
    template = drawing.rng.choice(block_tables.IN_PLACE)
    made = drawing.expression(template, [value], "grows", written=not value.fresh)
    if made is not None:
        # arrays that share its memory have other values from then on
        for name in value.views:
            drawing.values.pop(name, None)


def mask(drawing: Drawing, value: Value) -> None:
    table = tables.UNMASKS if drawing.is_masked(value) else tables.MASKS
    drawing.expression(drawing.rng.choice(table), [value], "jumps", twice=True)


def positions(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.POSITIONS), [value], "jumps", twice=True)


def filtered(drawing: Drawing, value: Value) -> None:
    drawing.expression(drawing.rng.choice(tables.FILTERED), [value], "bins", twice=True)


def pair(drawing: Drawing, value: Value) -> None:
    effect = drawing.rng.choice(["grows", "grows", "grows", "jumps"])
    other = _other(drawing, value)
    if other is not None:
        template = drawing.rng.choice(tables.PAIRS[effect])
        drawing.expression(template, [value, other], effect, twice=True)


def statement(drawing: Drawing, value: Value) -> None:
    drawing.add(drawing.rng.choice(tables.STATEMENTS), [value], "keeps", twice=True)


def fan(drawing: Drawing, value: Value) -> None:
    """Several arrays of different kinds made of one, which are computed together."""
    if drawing.rng.random() < 0.5:
        drawing.draw_of(("elementwise", "slices", "chunks", "move"), value)
        value = list(drawing.values.values())[-1]
    for _ in range(drawing.rng.randint(2, 4)):
        drawing.draw_of(FAN, value)
    if drawing.rng.random() < 0.4:
        drawing.wanted.add(value.name)


def _other(drawing: Drawing, value: Value) -> Value | None:
    """Another array, of the same shape if possible."""
    others = [v for v in drawing.values.values() if v.name != value.name]
    shape = drawing.array(value).shape
    alike = [v for v in others if drawing.array(v).shape == shape]
    return drawing.rng.choice(alike or others) if others else None


#: Each group, and how often it is drawn among all.
GROUPS = {
    "elementwise": (7, elementwise),
    "late": (3, late),
    "through": (4, through),
    "slices": (2, slices),
    "nothing": (4, nothing),
    "parts": (2, parts),
    "move": (3, move),
    "copy": (2, copy),
    "index": (4, index),
    "chunks": (4, chunks),
    "unified": (4, unified),
    "reduction": (11, reduction),
    "other": (5, other),
    "blocks": (2, blocks),
    "one_block": (6, one_block),
    "block_info": (3, block_info),
    "blockwise": (5, blockwise),
    "delayed": (3, delayed),
    "in_place": (2, in_place),
    "mask": (1.5, mask),
    "positions": (1.5, positions),
    "filtered": (1.5, filtered),
    "pair": (3, pair),
    "statement": (2, statement),
    "fan": (2, fan),
}
EVERY = tuple(GROUPS)
FAN = ("reduction", "slices", "index", "elementwise", "move", "chunks", "through", "late", "blocks")
_WORK = ("elementwise", "nothing")
_BLOCKS = ("one_block", "block_info", "blockwise", "blocks")
#: Programs for which rules exist: the groups of each line; None for any group.
PLANS = (
    None,
    None,
    None,
    (("slices", "nothing"), _WORK, _WORK, ("reduction",), _WORK),
    (_WORK, _WORK, ("reduction",), ("elementwise", "statement", "index", "nothing")),
    (("reduction",), _WORK, ("reduction",)),
    (("slices", "nothing"), _WORK, _WORK, ("index",), _WORK),
    (("slices", "nothing"), _WORK, ("reduction", "other"), ("index",)),
    (_WORK, ("parts", "late"), ("reduction",), _WORK),
    (_WORK, ("late",), ("reduction", "index", "statement", "nothing"), EVERY),
    (("index", "move", "copy", "nothing"), _WORK, ("in_place", "blocks"), EVERY),
    (("mask", "elementwise"), ("reduction", "index", "late"), EVERY),
    (("chunks",), _WORK, ("slices", "chunks", "nothing"), ("reduction", *_BLOCKS), EVERY),
    (("slices", "move"), ("chunks",), ("reduction", *_BLOCKS), ("index", "slices")),
    (("move", "slices", "chunks"), _WORK, ("block_info", "one_block"), ("reduction", "slices")),
    (_WORK, ("unified",), ("reduction", "slices", "nothing"), EVERY),
    (_WORK, ("move", "nothing"), ("through", "index"), ("reduction", "move"), _WORK),
    (("slices", "chunks", "nothing"), _WORK, ("fan",)),
    (("slices", "nothing"), _WORK, ("positions",), _WORK),
    (("filtered",), ("filtered", "nothing"), ("slices", "nothing")),
    (("slices",), ("slices", "nothing")),
    (_WORK, ("delayed",), ("reduction", "index", "nothing")),
)
