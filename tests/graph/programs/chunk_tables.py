"""Lines of arrays of other chunks, and of slices behind work.

`tables` says what stands in the places of these templates.
"""

# ruff: noqa: E501 - a template stays in one line

from __future__ import annotations

from tests.graph.programs.tables import lines_of

#: Rechunks of arrays that are sliced, transposed or computed before or after.
CHUNKS = lines_of("""
    {a}.rechunk({target})   {a}.rechunk({target})   {a}.rechunk({target}).rechunk({other})
    {a}.rechunk(-1).rechunk({target})   {a}.rechunk({target}).rechunk(-1)
    {a}.rechunk({{0: -1}})   {a}.rechunk({{0: 1}})   {a}.rechunk({{-1: -1}})   {a}.rechunk({{0: 3}})
    {a}.rechunk({target}, balance=True)   {a}.rechunk({target}, method='tasks')
    {a}.rechunk({target}, threshold=1, block_size_limit=200)
    {a}[{slices}].rechunk(-1)   {a}[{slices}].rechunk(3)   {a}[{cut}:].rechunk({{0: 3}})
    {a}[1:].rechunk(2)   {a}[1:].rechunk({{0: -1}})   {a}[::2].rechunk({{0: 2}})
    {a}[::-1].rechunk({target})   {a}[None].rechunk(-1)   {a}[{index}].rechunk(2)
    {a}.T.rechunk({target}[::-1])   {a}.T.rechunk(3)   {a}[{cut}:].T.rechunk({{-1: -1}})
    ({a} + 1).rechunk({target})   ({a} * 2 - {a}).rechunk({target})   (-{a}).T.rechunk({{0: 2}})
    ({a} + {a}.max()).rechunk({target})   ({a} + 1)[{slices}].rechunk(4)
    {a}.rechunk({target})[{slices}]   {a}.rechunk({target})[{index}]   {a}.rechunk({target}).T
    {a}.rechunk({target})[::-1]   {a}.rechunk({target})[{cut}:].rechunk(2)
    {a}.rechunk({target}).T.rechunk({other}[::-1])   {a}.rechunk({target}).map_blocks(fn.same)
    da.rechunk({a}, {target})   {a}.rechunk(dict(enumerate({target})))
""")
#: Operands of different chunks, which dask unifies; overlapping parts of one array.
UNIFIED = {
    "grows": lines_of("""
        {a} + {a}.rechunk({target})   {a}.rechunk({target}) * {a}   {a} + {a}.rechunk(-1)
        da.maximum({a}, {a}.rechunk({target}))   {a}.rechunk({target}) - {a}.rechunk({other})
        ({a} + {a}.rechunk({target})).sum(axis={axes})
        ({a}.rechunk({target}) * 2 + {a}).max(axis={axes})
        ({a} * 2 + {a}.rechunk({target}))[{index}]   ({a} + {a}.rechunk({target}))[{slices}].T
        ({a} + {a}.rechunk({target}))[{slices}].sum(axis={axes})
        da.blockwise(np.add, {of}, {a}, {of}, {a}.rechunk({target}), {of}, dtype={a}.dtype)
        {a} + {a}.max(axis=0).rechunk(2)   {a} - {a}.rechunk({target}).min(axis=0)
        {a} + da.ones({a}.shape, chunks={target}, dtype={a}.dtype)   {a} + da.arange({last}, chunks=2)
        ({a} + da.ones({a}.shape, chunks={target}, dtype='i1')).sum(axis={axes})
        {a}[::-1] + {a}   {a}[1:] - {a}[:-1]   ({a}[1:] - {a}[:-1]).sum(axis={axes})
        ({a}[1:] * 2 + {a}[:-1])[{cut}:]   {a}[..., 2:] - {a}[..., :-2]   {a}[2:] + {a}[1:-1] - {a}[:-2]
        {a}[::2] + {a}[{n} % 2 :: -2]   {a}[: {n} // 2] + {a}[{n} - {n} // 2 :]
        {a}[:{cut}].sum(axis=0) + {a}.sum(axis=0)   {a} + {a}[0]   {a} - {a}[..., -1:]
        da.stack([{a}, {a}.rechunk({target})])   {a} + {a}.rechunk({target})[0]
        da.concatenate([{a}, {a}.rechunk({target})], axis={axis})
        da.tensordot({a}, {a}.rechunk({target}), axes=(0, 0))   {a} @ {a}.rechunk({target}).T
        da.broadcast_arrays({a}, {a}.rechunk({target})[0])[1] + {a}
        sum(da.unify_chunks({a}, {of}, {a}.rechunk({target}), {of})[1])
        {a}.rechunk({target}).map_blocks(fn.plus_one) + {a}
    """),
    "bins": lines_of("""
        da.where({a}.rechunk({target}) > 0, {a}, 0)   {a} == {a}.rechunk({target})
        da.where({a} > 0, {a}.rechunk({target}), -1).sum(axis={axes})
        da.where({a}.rechunk({target}) > 0, {a}, 0)[{slices}]
        da.where({a}.rechunk({target}) > 0, {a} * 2, {a}.rechunk({other})).max(axis={axes})
        da.ma.masked_where({a}.rechunk({target}) > 0, {a})   {a}[{a}.rechunk({target}) > 0].sum()
        ({a}[1:] > {a}[:-1]).sum(axis={axes})   ({a} != {a}.rechunk({target})).any(axis={axes})
    """),
}
#: The same of two arrays.
UNIFIED_PAIR = lines_of("""
    {a} + {b}.rechunk({target})   {a}.rechunk({target}) - {b}   {a}[1:] - {b}[:-1]
    ({a} + {b}.rechunk({target})).sum(axis={axes})   ({a} * {b})[{slices}].sum(axis={axes})
    ({a} + {b}.rechunk({target}))[{index}]   da.maximum({a}[::2], {b}[::2]).rechunk(3)
    da.map_blocks(np.add, {a}.rechunk(-1), {b}.rechunk(-1))   ({a} + {b}.T.T)[{cut}:]
""")
#: Slices after elementwise work, before a reduction.
THROUGH = {
    "sums": lines_of("""
        ({a} + 1)[{index}].sum(axis=0)   ({a} * 2 + 1)[{index}].sum(axis=0)
        ({a} + 1)[{slices}].sum(axis={axes})   (-{a})[{index}].max()   (1 - {a})[{index}].min(axis=-1)
        ({a} * 2)[::-2].sum(axis=0)   (({a} + 1).T)[::2].sum(axis=-1)   ({a}.T * 2)[{slices}]
        (({a} * 2)[1:][::-1] + 1)[:5].sum(axis=0)   ({a}[::2] + {a}[0]).T[..., ::-1].sum(axis=0)
        ({a} * 3)[None, ..., {last_list}].sum(axis=-1)   abs({a})[[0, -1]].T.sum(axis=0)
        ({a} + 1)[..., -1].sum()   ({a} + 1)[{n} // 2, ...].max()   ({a} - 2)[{list}].sum(axis=0)
        (({a} + 1)[{cut}:] * 2)[::2].sum(axis={axes})   ({a} + 1)[{index}][None].sum(axis=-1)
        ({a} + 1)[::-1, None].sum(axis=0)   ({a}.clip(-1, 1) + 1)[{slices}].sum()
        ({a} + {a}.T.T)[{index}].sum(axis=0)   ({a}.astype('f8') + 1)[{index}].sum()
        ({a} + np.arange({last}))[{index}].sum(axis=0)   ({a} + np.arange({last}))[{slices}].T
        ({a} + {a}[0])[{index}].max(axis=0)   ({a}[..., None] + 1)[{cut}:, ..., 0].sum(axis=0)
        da.stack([{a} + 1, {a}])[{axis}, {cut}:].sum(axis=0)   ({a} + 1)[-1]   (2 - {a})[{list}, ..., 0]
    """),
    "means": lines_of("""
        ({a} - {a}.mean(axis=0))[2:].max()   ({a} - {a}.min(axis=0))[::-1][{cut}:].sum(axis=0)
        ({a} - {a}.mean())[{index}]   ({a} - {a}.mean(axis=0))[{index}].max(axis=0)
        ({a} - {a}.mean(axis=0, keepdims=True))[{slices}].max(axis={axes})   ({a} / 2)[{index}].max()
        (({a} - {a}.mean(axis=0)).T)[::-2].min(axis=0)   ({a} - {a}[{slices}].mean())[{cut}:]
        ({a} - {a}.mean(axis=-1, keepdims=True))[..., ::-3]   ({a} + 1)[{index}].mean(axis=-1)
        (({a} - {a}.mean(axis=0)) * 2)[{list}].max(axis=0)   ({a} * 2)[{slices}].mean(axis={axes})
    """),
    "rough": lines_of("""
        ({a} / 3 + 1)[{slices}].mean(axis={axes})   ({a} - {a}.mean(axis=0))[{index}].sum(axis=0)
        ({a} / 3)[{index}].sum()   ({a} - {a}.mean())[{slices}].sum(axis={axes})
        ({a} * 2)[{index}].std()   ({a} + 1)[{slices}].var(axis={axes})
    """),
}
