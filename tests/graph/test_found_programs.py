"""Programs whose results once differed, found by random search, and one for each rule condition.

`test_programs` describes the search, and prints programs in this form.
"""

import pytest

from b2nd_dask import from_b2nd
from tests.graph.programs.program import Program, check
from tests.graph.programs.side import written
from tests.graph.programs.sources import Source

pytestmark = pytest.mark.filterwarnings("ignore")

HALF = 2.0**-11
DOUBLE = 2.0**-53

ROWS = Source("i4", (12, 9), (2, 3), (1, 3), "zeros", (("...", "seed 4"), ("0:4, 0:9", "2")))
FLOATS = Source("f8", (12, 9), (2, 3), (1, 3), "zeros", (("...", "seed 4"), ("0:4, 0:9", "nan")))
TALL = Source("i4", (40, 12), (4, 5), (2, 5), "zeros", (("...", "seed 4"), ("0:8, 0:10", "2")))
LINE = Source("i8", (24,), (2,), (2,), "zeros", (("...", "seed 4"), ("0:6", "2")))
UNWRITTEN = Source("f8", (12, 9), (4, 3), (2, 3), "uninit", (("0:4, 0:3", "2"),))
CONSTANT = Source("f8", (12, 9), (4, 3), (2, 3), "zeros")
STRINGS = Source("U2", (10,), (5,), (5,), "zeros", (("...", "seed 4"),))
FIELDS = Source("i4,>f8", (10,), (5,), (5,), "zeros", (("...", "seed 4"),))

#: Programs found by random search, or simplified by hand.
FOUND = {
    "half products overflow block by block": Program(
        (TALL,), ("v0 = frame(0)", "v1 = da.prod(v0, axis=None, dtype='f2')"), {"v1": HALF}
    ),
    "counts of means wrap around": Program(
        (TALL,), ("v0 = frame(0, chunks=-1)", "v1 = da.mean(v0, axis=None, dtype='u1')"), {"v1": 0}
    ),
    "counts of moments wrap around": Program(
        (Source("c16", (40, 12), (4, 5), (2, 5), "zeros", TALL.writes),),
        ("v0 = frame(0)", "v1 = da.std(v0, axis=None, dtype='u1')"),
        {"v1": 0},
    ),
    "a slice that leaves what another one has moved": Program(
        (Source("i4", (6, 11), (7, 11), (7, 8), "zeros", (("0:6, 0:11", "-2"),)),),
        (
            "v0 = frame(0, chunks=((4, 2), 11))",
            "v2 = v0.map_blocks(np.add, v0.max())[3, 3:5:2]",
            "v3 = v2[::-2]",
        ),
        {"v3": 0},
    ),
    "one frame with two values for what was never written": Program(
        (Source("i8", (12, 15), (3, 8), (1, 6), "uninit"),),
        ("v0 = frame(0)", "v1 = frame(0, uninit=1)", "v2 = v1 - v0"),
        {"v2": 0},
    ),
    "an array in the place of a block": Program(
        (Source("?", (33,), (5,), (5,), "zeros"),),
        ("v0 = frame(0)[:30]", "v1 = v0.map_blocks(np.add, np.arange(5))[-5::2]"),
        {"v1": 0},
    ),
    "a single element with the axis of another array": Program(
        (Source("f8", (4,), (1,), (1,)),),
        ("v0 = frame(0, chunks=4)", "v2 = v0[-2] + da.arange(3, chunks=3)", "v3 = v2[1:]"),
        {"v3": 0},
    ),
    "blocks that dask promises and does not make": Program(
        (Source("u1", (6, 5), (3, 2), (1, 2)),),
        (
            "v0 = frame(0)[::2, 0:-2:3]",
            "v1 = da.blockwise(fn.plus_sum_of, 'ab', v0, 'ab', da.arange(5, chunks=2), 'z', concatenate=True, dtype='u1')",  # noqa: E501
            "v2 = da.nanmean(v1, axis=1)",
        ),
        {"v2": 0},
    ),
    "a string that is shorter than its dtype": Program(
        (STRINGS,),
        ("v0 = frame(0)", "v1 = v0[..., 0]", "v2 = da.stack([v0[0], v0[1]])", "v3 = (v0 == 0)[-1]"),
        {"v1": 0, "v2": 0, "v3": 0},
        front_end="dask-array",
    ),
    "a scalar that is an array": Program(
        (Source("i8", (), (), ()), LINE),
        (
            "v0 = frame(0)",
            "v1 = (v0 * 2).map_blocks(fn.array_type)",
            "v2 = frame(1)",
            "v3 = da.where(v2 != v2, 0, v2)[..., 0]",
        ),
        {"v1": 0, "v3": 0},
        front_end="dask-array",
    ),
    "one element beside blocks of one element and none": Program(
        (Source("?", (9, 7), (9, 2), (7, 2), "zeros"),),
        (
            "v0 = frame(0)",
            "v2 = da.where(v0.rechunk((8, 6)) > 0, v0, 0)[-8::2, 1:-4:2]",
            "v3 = da.argmin(v2, -1)",
        ),
        {"v3": 0},
        front_end="dask-array",
    ),
    "stacks of joined arrays without elements": Program(
        (Source("f4", (4, 5, 1, 4), (2, 5, 1, 4), (2, 5, 1, 4), "zeros"),),
        (
            "v0 = frame(0)",
            "v1 = v0[4:-2:3, :-1:2, :-1, :3]",
            "v2 = da.concatenate([v1[i : i + 3] for i in (0, 3, 1)])",
            "v3 = da.stack([v2, v2 * 2], axis=-3)",
        ),
        {"v3": 0},
    ),
    "a power of single booleans of two reads": Program(
        (Source("?", (38,), (19,), (14,), "zeros"),),
        (
            "v0 = frame(0, chunks=-1)",
            "v1 = v0 ** 2",
            "v2 = v1[: 38 // 2] + v1[38 - 38 // 2 :]",
            "v3 = v2[19 // 2, ...]",
        ),
        {"v3": 0},
    ),
    "strings that no result needs": Program(
        (Source("S3", (6, 6), (2, 2), (2, 1), "zeros"),),
        ("v0 = frame(0)", "v2 = v0.astype('u1')", "v7 = v2[2:1, -4::3]"),
        {"v7": 0},
    ),
    "fields that xarray cannot mask": Program(
        (FIELDS,),
        ("v0 = frame(0)", "v1 = da.ma.masked_array(v0, mask=True)"),
        {"v1": 0},
        wrapped=True,
    ),
}

#: One program for each condition of a rule; without it the rule would change results.
CONDITIONS = {
    "a task with a second name has other dependents": (
        (ROWS,),
        ("v0 = frame(0)", "v1 = v0[::2]", "v2 = v1 + v1[:1]", "v3 = v1[1:3].sum()"),
        "v0 v1 v2 v3",
    ),
    "an index behind work with an array of another task": (
        (ROWS,),
        ("v0 = frame(0)", "v1 = (v0 * v0.max(axis=0))[2, 3:]", "v2 = (v0 - v0.min(axis=0))[:, 4]"),
        "v1 v2",
    ),
    "a single string, compared": (
        (STRINGS,),
        ("v0 = frame(0)", "v1 = (~(v0 == 'a'))[3]", "v2 = (~(v0 == 'b'))[4]"),
        "v1 v2",
    ),
    "single numbers that overflow": (
        (Source("u1", (12,), (4,), (4,), "200"),),
        ("v0 = frame(0)", "v1 = (v0 * np.uint8(2))[3]", "v2 = (~(v0 > 3))[2]"),
        "v1 v2",
    ),
    "fields are no places": (
        (FIELDS,),
        ("v0 = frame(0)", "v1 = v0['f0'] + 1", "v2 = v0[['f0', 'f1']]", "v3 = v0['f1'].sum()"),
        "v1 v2 v3",
    ),
    "positions from the end, and repeated ones": (
        (ROWS,),
        (
            "v0 = frame(0, chunks=-1)",
            "v1 = (v0 + 1)[[-1, 3, 3, -12]]",
            "v2 = (v0 * 2).vindex[[-1, 2, 2], [0, -9, -9]]",
            "v4 = da.blockwise(operator.getitem, 'ij', v0, 'ij', np.array([-1, 0, -2]), None, dtype='i4', adjust_chunks={'i': 3}, meta=v0._meta)",  # noqa: E501
        ),
        "v1 v2 v4",
    ),
    "reads within lists of blocks, and alone": (
        (ROWS,),
        (
            "v0 = frame(0)",
            "v1 = da.blockwise(fn.sum_of_blocks, 'a', v0, 'ab', dtype=v0.dtype) - v0.max()",
            "v2 = da.blockwise(fn.blocks_and_sum, 'ab', v0, 'ab', v0, 'ab', v0.max(), '', dtype=v0.dtype)",  # noqa: E501
            "v3 = (v0 - v0.mean())[[0, 0]]",
            "v4 = (v0 - v0.max())[1:, ::2]",
        ),
        "v1 v2 v3 v4",
    ),
    "reads that are asked for": (
        (ROWS,),
        ("v0 = frame(0)", "v1 = v0 - v0.max()", "v2 = v0[[3, 1]]"),
        "v0 v1 v2",
    ),
    "blocks from side by side that are stacked": (
        (ROWS,),
        (
            "v0 = frame(0)",
            "v1 = da.concatenate([v0[:2, i : i + 3] for i in (0, 3, 6)])",
            "v2 = v1.sum(axis=0, split_every=3)",
            "v3 = v1.max(axis=0)",
        ),
        "v2 v3",
    ),
    "blocks that are worked on differently": (
        (LINE,),
        (
            "v0 = frame(0)",
            "v1 = da.concatenate([v0[:12] * 1, v0[12:] * 3]).sum(split_every=16)",
            "v2 = 1 / da.concatenate([v0[:12] * 0.0, v0[12:] * -0.0]).max(split_every=16)",
            "v3 = da.concatenate([v0[:12] * 100 * 1, v0[12:] * 100 * True]).astype('i1').sum()",
        ),
        "v1 v2 v3",
    ),
    "literals that are equal, and not the same": (
        (Source("i1", (24,), (2,), (2,), "100"),),
        (
            "v0 = frame(0)",
            "v1 = da.concatenate([v0[:12].map_blocks(np.multiply, 2, dtype='i8'), v0[12:].map_blocks(np.multiply, np.int64(2), dtype='i8')]).sum(split_every=16)",  # noqa: E501
            "v2 = da.concatenate([1 / (v0[:2] * 0.0), 1 / (v0[2:] * -0.0)]).min(split_every=16)",
            "v3 = da.concatenate([1 / (v0[:2] * -0.0), 1 / (v0[2:] * 0.0)]).max(split_every=16)",
        ),
        "v1 v2 v3",
    ),
    "blocks of two frames": (
        (LINE, Source("i8", (24,), (2,), (2,), "zeros", (("...", "seed 7"),))),
        (
            "v0 = frame(0)",
            "v1 = frame(1)",
            "v2 = da.concatenate([v0[:12], v1[12:]]).sum(split_every=16)",
            "v3 = da.concatenate([v1[:2], v0[2:]]).prod(split_every=16)",
        ),
        "v2 v3",
    ),
    "gaps, and blocks twice": (
        (LINE,),
        (
            "v0 = frame(0)",
            "v1 = da.concatenate([v0[:2], v0[6:8]]).sum(split_every=16)",
            "v2 = da.concatenate([v0[:2], v0[:2], v0[2:4]]).sum(split_every=16)",
            "v3 = da.concatenate([v0[::-1], v0[::-1]]).sum(split_every=16)",
            "v4 = frame(1)",
            "v5 = da.block([[v4[:2, :3], v4[:2, 3:6]], [v4[2:4, :3], v4[:2, :3]]]).sum()",
            "v6 = da.block([[v4[:2, :3], v4[:2, 3:6]], [v4[2:4, :3], v4[4:6, 3:6]]]).sum()",
        ),
        "v1 v2 v3 v5 v6",
        ROWS,
    ),
    "partial results that others need": (
        (LINE,),
        (
            "v0 = frame(0)",
            "v1 = da.reduction(v0, da.chunk.sum, da.chunk.max, axis=0, dtype='i8')",
            "v2 = v0.sum(split_every=2)",
            "v3 = v0.sum(split_every=16)",
            "v4 = v0.sum(split_every=2) + v0.sum(split_every=3)",
        ),
        "v1 v2 v3 v4",
    ),
    "combining steps of their own": (
        (LINE,),
        (
            "v0 = frame(0)",
            "v1 = da.reduction(v0, da.chunk.sum, functools.partial(da.chunk.sum, initial=5), dtype='i8')",  # noqa: E501
            "v2 = da.reduction(v0, da.chunk.max, da.chunk.sum, dtype='i8', split_every=4)",
            "v3 = da.reduction(v0, functools.partial(da.chunk.sum, initial=5), da.chunk.sum, dtype='i8')",  # noqa: E501
            "v4 = da.reduction(v0, da.chunk.sum, da.chunk.sum, combine=fn.in_place_greatest, dtype='i8', split_every=2)",  # noqa: E501
        ),
        "v1 v2 v3 v4",
    ),
    "extremes of several blocks": (
        (LINE, ROWS),
        (
            "v0 = frame(0)",
            "v1 = frame(1)",
            "v2 = v0.argmax(split_every=2)",
            "v3 = v1.argmin(split_every=2)",
            "v4 = v1.argmax(axis=0)",
            "v5 = frame(1, chunks=-1).argmax()",
            "v6 = frame(1, chunks=-1).argmin(axis=1)",
            "v7 = da.nanargmax(frame(1, chunks=-1) / frame(1, chunks=-1), axis=1)",
        ),
        "v2 v3 v4 v5 v6 v7",
    ),
    "infinite extremes beside NaN": (
        (Source("f8", (12,), (3,), (3,), "nan", (("0:3", "nan"), ("6:9", "-inf"))),),
        ("v0 = frame(0, chunks=6)", "v1 = da.nanargmax(v0)", "v2 = da.nanargmin(v0, axis=0)"),
        "v1 v2",
    ),
    "results that are no numbers": (
        (ROWS,),
        (
            "v0 = frame(0, chunks=-1)",
            "v1 = v0.astype('M8[s]').max(axis=0)",
            "v2 = v0.astype(object).sum(axis=1)",
            "v3 = (v0 * np.timedelta64(1, 's')).sum(axis=0)",
            "v4 = v0.astype('U3').argmax()",
            "v5 = da.map_blocks(np.where, v0 > 0, v0, 2**70, dtype=object).sum()",
        ),
        "v1 v2 v3 v4 v5",
    ),
    "reductions of work with arrays of other tasks": (
        (ROWS,),
        (
            "v0 = frame(0)",
            "v1 = (v0 * v0.max(axis=0)).sum(axis=0)",
            "v2 = (v0 + v0.min(axis=1, keepdims=True)).max(axis=0)",
            "v3 = (v0[2:, ::2] - v0.max(axis=0)[::2]).sum()",
        ),
        "v1 v2 v3",
    ),
    "literals that are arrays": (
        (ROWS,),
        (
            "v0 = frame(0)",
            "v1 = da.map_blocks(np.add, v0, np.arange(3), dtype='i8').sum()",
            "v2 = da.map_blocks(np.add, v0, np.arange(3), dtype='i8')[3, 1]",
            "v3 = da.map_blocks(np.add, v0, np.ma.masked_array(3, True), dtype='i8').sum()",
        ),
        "v1 v2 v3",
    ),
    "a masked number of another task": (
        (FLOATS,),
        (
            "v0 = frame(0)",
            "v1 = da.ma.masked_array(da.ones(3), mask=True).sum()",
            "v2 = (v0 + v1).sum()",
            "v3 = (v0 * v1).max(axis=0)[3]",
            "v4 = (v0 + v1)[2, 3]",
        ),
        "v2 v3 v4",
    ),
    "moments of chunks with different means": (
        (Source("i4", (12, 9), (2, 3), (1, 3), "zeros", (("0:6, 0:9", "2"), ("...", "seed 8"))),),
        ("v0 = frame(0, chunks=-1)", "v1 = v0.var()", "v2 = v0.std(axis=0)", "v3 = v0.var(axis=1)"),
        "v1~ v2~ v3~",
    ),
    "sums and extremes of constants and NaN": (
        (FLOATS, CONSTANT),
        (
            "v0 = frame(0, chunks=-1)",
            "v1 = frame(1, chunks=(8, 9))",
            "v2 = v0.min(axis=0)",
            "v3 = v0.max()",
            "v4 = (v1 + 2).sum()",
            "v5 = (v1 + 2).prod(axis=0)",
            "v6 = da.nansum(v0 + 1, axis=1)",
        ),
        "v2 v3 v4 v5 v6",
    ),
    "sums of half floats": (
        (
            Source(
                "f2",
                (400, 40),
                (4, 40),
                (4, 40),
                "zeros",
                (("...", "2000"), ("0:400, 20:40", "-2000")),
            ),
        ),
        ("v0 = frame(0, chunks=-1)", "v1 = v0.sum(axis=1)", "v2 = (v0 * 0 + 1).mean()"),
        "v1 v2",
    ),
    "functions in place": (
        (UNWRITTEN, CONSTANT, ROWS),
        (
            "v0 = frame(0, uninit=1)",
            "v1 = v0.map_blocks(fn.in_place_plus_one, dtype='f8', meta=v0._meta)",
            "v2 = frame(1).map_blocks(fn.in_place_cleared, dtype='f8', meta=v0._meta).sum()",
            "v3 = frame(1, chunks=-1)[1:, ::2].T.map_blocks(fn.in_place_flat, dtype='f8', meta=v0._meta)",  # noqa: E501
            "v4 = frame(1, chunks=(12, 3)).map_blocks(np.real).map_blocks(fn.in_place_plus_one, dtype='f8', meta=v0._meta)",  # noqa: E501
            "v5 = da.blockwise(fn.in_place_sum_of_blocks, 'a', frame(1, chunks=(4, 9)), 'ab', dtype='f8', meta=np.empty(0))",  # noqa: E501
            "v6 = da.blockwise(fn.in_place_sum_of_blocks, 'a', frame(1, chunks=(6, 3)), 'ab', dtype='f8', meta=np.empty(0))",  # noqa: E501
            "v7 = frame(1, chunks=(3, 9)).map_blocks(np.nan_to_num, copy=False).map_blocks(np.add, 1)",  # noqa: E501
        ),
        "v1 v2 v3 v4 v5 v6 v7",
    ),
    "calls that write into what they are given": (
        (UNWRITTEN,),
        (
            "v0 = frame(0, uninit=np.nan)",
            "v1 = v0.map_blocks(np.nan_to_num, copy=False).sum()",
            "v2 = frame(0, uninit=np.nan, chunks=-1).map_blocks(np.nan_to_num, copy=False)[::7, 3]",
        ),
        "v1 v2",
    ),
    "outputs of constants": (
        (CONSTANT,),
        ("v0 = frame(0)", "v1 = frame(0, chunks=-1)", "v2 = frame(0, chunks=(12, 9))[1:, ::2].T"),
        "v0 v1 v2",
    ),
}


def _with_precision(name):
    return name.rstrip("~"), DOUBLE if name.endswith("~") else 0.0


@pytest.mark.parametrize("name", FOUND)
def test_found(tmp_path, name):
    check(FOUND[name], tmp_path)


@pytest.mark.parametrize("array_type", ["dask", "dask-array"])
def test_strings_have_the_length_of_their_dtype(tmp_path, array_type):
    """dask indexes a block in memory to a scalar, which has the length of its value."""
    ((path, _),) = written((STRINGS,), tmp_path)
    x = from_b2nd(path, array_type=array_type)
    assert x[3].dtype == x[3].compute().dtype == "U2"


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(tmp_path, name):
    sources, lines, outputs, *more = CONDITIONS[name]
    precisions = dict(map(_with_precision, outputs.split()))
    # alone, since reads for several outputs have no pushdown; and together
    for some in ([output] for output in precisions.items()):
        check(Program((*sources, *more), lines, dict(some)), tmp_path)
    check(Program((*sources, *more), lines, precisions, "optimized twice", held=100), tmp_path)
