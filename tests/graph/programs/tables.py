"""Lines of programs as templates, by what they do to how exact their results are.

``{a}`` is an array, ``{axis}`` one of its axes, ``{axes}`` some or None, ``{n}`` the length of its
first axis. Results are `exact` while all numbers are small and whole; then each way of adding them
up gives the same. A quotient or a mean is still the same in each way (`rounded`), a sum of such is
not (`rough`), and nothing that jumps (comparisons, casts, places of extremes) is made of a `rough`
one.
"""

# ruff: noqa: E501 - a template stays in one line

from __future__ import annotations

import re


def lines_of(text: str) -> list[str]:
    """Templates, one or more in a line, with three spaces between them."""
    return re.split(r"\s{3,}|\n\s*", text.strip())


#: Elementwise. "grows": larger numbers; "rounds": quotients and roots; "rough": differs by
#: instruction set; "jumps": bitwise equal for all schedulers; "odd": unknown to all rules.
ELEMENTWISE = {
    "keeps": lines_of("""
        -{a}   abs({a})   {a} + 1   {a} - np.int64(1)   np.float32(1) + {a}   {a} + 1j
        da.positive({a})   {a}.conj()   {a}.real   {a}.imag   {a}.clip(-1, 1)
        da.clip({a}, 0, None)   da.maximum({a}, 0)   da.fmin(1, {a})   da.fmax({a}, np.nan)
        {a} - da.nansum(da.ones(3))   {a} + dask.delayed(int)(2)   np.add({a}, 1)
        {a} + np.asarray(3)   {a} + np.arange({last})   {a} + da.arange({last}, chunks=3)
        da.nan_to_num({a})   da.nan_to_num({a}, nan=1.0, posinf=2)   {a} * True
        {a}.map_blocks(np.nan_to_num, nan=-1.0)   da.map_blocks(np.add, {a}, 1)   da.conj({a})
        {a}.round()   da.around({a}, 1)   {a} * -0.0   {a}.astype('f8')
        {a}.astype('f4', copy=False)   {a}.astype({a}.dtype)   {a}.astype('>f8')
        {a}.astype('c16')   {a}.astype('f2')   {a}.map_blocks(np.real)
        da.map_blocks(np.round, {a}, 1)   da.asarray({a})   {a}.map_blocks(np.clip, -1, 1)
        {a}.map_blocks(np.clip, a_min=-1, a_max=None)   {a} + 2**40   {a} + True
        da.where({a} != {a}, 0, {a})   da.negative({a})   {a} + {a}[..., :1]
    """),
    "grows": lines_of("""
        {a} * 2 + 1   {a} * {a} - {a}   {a} ** 2   {a} * np.int8(3)   {a} * 1j   da.square({a})
        da.multiply({a}, -3)   {a} * (1 - 2j)   {a} << 1   {a} + {a}.T.T
    """),
    "rounds": lines_of("""
        {a} / 2   {a} / 3   1 / {a}   da.sqrt(abs({a}))   da.reciprocal({a})   {a} * 0.1
        {a}.map_blocks(np.true_divide, 7)   {a} / {a}   da.sqrt({a})   {a} * 1e300
    """),
    "rough": lines_of("""
        da.exp({a})   da.sin({a})   da.log1p(abs({a}))   da.arctan2({a}, 2)   {a} ** 0.5
        da.angle({a})   da.hypot({a}, 1)   da.tanh({a})   da.logaddexp({a}, 1)
    """),
    "jumps": lines_of("""
        {a} > 0   {a} == 0   ({a} > 0) | ({a} < -2)   da.isnan({a})   {a} // 2   {a} % 3
        da.sign({a})   da.floor({a})   da.isclose({a}, 1)   da.where({a} > 1, {a}, 0)
        da.where({a} > 0, {a}, np.nan)   ~{a}   {a} & 1   {a} ^ True   da.logical_not({a})
        {a}.astype('i4')   {a}.astype(bool)   {a}.astype('u1')   {a} >= {a}.T.T
        da.signbit({a})   da.isfinite({a})   da.logical_and({a}, {a} > 1)   da.trunc({a})
        da.heaviside({a}, 1)   {a}.map_blocks(np.greater, 0, dtype=bool)
    """),
    "odd": lines_of("""
        {a}.astype(object)   {a} + np.datetime64(1, 's')   {a} + np.timedelta64(1, 's')
        da.from_delayed(dask.delayed(fn.same)({a}), {a}.shape, {a}.dtype)   {a} * 10**30
        da.map_blocks(np.where, {a} == {a}, {a}, 1, dtype={a}.dtype)   da.fix({a})   {a}.copy()
        {a}.astype('U3')   {a}.astype('M8[s]')   {a} == 'a'   da.isin({a}, [1, 2])
        {a}.view('u1')   da.iscomplex({a})   da.digitize({a}, np.array([0, 2]))
        da.searchsorted(da.arange(4, chunks=2), {a})   {a}.astype('m8[s]')   da.isnull({a})
        {a}.astype('i8', casting='safe')
    """),
}
#: Elements that move, and are otherwise as they were.
MOVES = lines_of("""
    {a}.T   {a}.transpose({perm})   {a}.reshape(-1)   {a}.ravel()   {a}[None]
    {a}.reshape({a}.shape[::-1])   da.moveaxis({a}, 0, -1)   {a}.swapaxes(0, -1)   {a}.squeeze()
    da.flip({a}, {axis})   {a}[..., None]   da.atleast_2d({a})   {a}.rechunk({target})
    {a}.rechunk({target})   {a}.rechunk(-1)   {a}.rechunk(1)   {a}.rechunk({{0: 2}})
    {a}.rechunk('auto')   {a}.blocks[0]   {a}.blocks[..., -1]   {a}.partitions[0]
    da.rot90({a})   {a}.flatten()   {a}.map_blocks(fn.same)
    da.broadcast_to({a}, (2, *{a}.shape))   da.expand_dims({a}, {axis})   {a}.blocks[::-1]
    {a}.reshape(1, -1)   {a}.reshape(*{a}.shape, 1)   {a}.reshape({merged})   {a}['f0']
    {a}['f1']   {a}[['f0', 'f1']]   {a}.map_blocks(np.transpose)
    xr.DataArray({a}).isel(dim_0=slice(None, None, 2)).data
""")
#: The same, whose results have parts of an array more than once, or new memory.
COPIES = lines_of("""
    da.roll({a}, 2, {axis})   da.tile({a}, 2)   da.repeat({a}, 2, {axis})   da.tril({a})
    da.pad({a}, 1)   da.pad({a}, 1, mode='edge')   da.pad({a}, 2, mode='wrap')
    da.pad({a}, 1, mode='reflect')   da.triu({a}, 1)   da.diag({a})   da.diagonal({a})
    da.concatenate([{a}, {a}], {axis})   da.stack([{a}, {a}], {axis})
    da.take({a}, [0, -1], {axis})   da.concatenate([{a}[:2], {a}[1:]])
    da.stack([{a}[0], {a}[-1], {a}[0]])   da.block([{a}, {a}])   da.vstack([{a}, {a}])
    da.hstack([{a}, {a}[..., :1]])   da.dstack([{a}, {a}])
    da.overlap.overlap({a}, depth=1, boundary='none')
    da.compress([True, False, True], {a}, {axis})   da.concatenate([{a}, da.ones({a}.shape)])
    da.delete({a}, 0, {axis})   da.insert({a}, 1, 0, {axis})   da.append({a}, {a}, {axis})
    {a}.map_overlap(fn.same, depth=1, boundary='reflect')
    da.concatenate([{a}[i : i + 2] for i in range(0, {n}, 2)])   da.nonzero({a})[0]
    da.concatenate([{a}[i : i + 3] for i in (0, 3, 1)])
    da.shuffle({a}, [[0, 1], [1, 0]], {axis})   xr.DataArray({a}).shift(dim_0=1).data
    xr.DataArray({a}).roll(dim_0=2).data   xr.DataArray({a}).stack(z=[...]).data
    xr.DataArray({a}).pad(dim_0=1).data
""")
INDICES = lines_of("""
    {a}[{index}]   {a}[{index}]   {a}[{index}]   {a}[{index}]   {a}[{index}]   {a}[{index}]
    {a}[{index}]   {a}[{index}]   {a}[{list}]   {a}[..., {last_list}]   {a}.vindex[{points}]
    {a}.vindex[{list}]   {a}[np.arange({n}) % 3 == 0]   {a}[[]]   {a}[-1]   {a}[{n} // 2, ...]
    {a}[..., 0]   {a}[da.from_array(np.array({list}), chunks=2)]   da.take({a}, {list}, 0)
    {a}[::-2]   {a}[{a}.shape[0]]   {a}.blocks[0][1:]   {a}[np.array({list})]   {a}[1:][::2][1:]
""")
#: Places that are chosen one by one, and searched for.
POSITIONS = lines_of("""
    {a}[{list}]   {a}[..., {last_list}]   {a}.vindex[{points}]   da.take({a}, {list}, 0)
    {a}.vindex[{points}][1:]   da.argmax({a}, {axis})   da.argmin({a})
    da.argmax({a}, {axis}, split_every=2)   da.nanargmin({a}, {axis})
""")
#: Names of dask's reductions.
REDUCTIONS = {
    "sums": ["sum", "nansum", "sum", "count_nonzero"],
    "products": ["prod", "nanprod"],
    "means": ["mean", "nanmean"],
    "rough": ["var", "std", "nanvar", "nanstd", "moment2", "moment3"],
    "keeps": ["min", "max", "nanmin", "nanmax", "any", "all"],
}
#: Reductions and scans of other shapes; xarray on top.
OTHERS = {
    "sums": lines_of("""
        da.cumsum({a}, {axis})   da.nancumsum({a}, {axis})   da.trace({a})
        da.diff({a}, axis={axis})   da.cumsum({a}, {axis}, method='blelloch')
        xr.DataArray({a}).sum('dim_0').data
        da.coarsen(np.sum, {a}, {{0: 2}}, trim_excess=True)   {a}[{a} == {a}].sum()
        da.reduction({a}, fn.total, fn.total, axis={axes}, dtype={a}.dtype)
        da.gradient({a}, axis={axis})
        da.reduction({a}, da.chunk.sum, da.chunk.max, axis={axes}, dtype={a}.dtype)
        da.reduction({a}, da.chunk.max, fn.total, combine=fn.greatest, axis={axes}, dtype={a}.dtype, split_every=2)
        da.reduction({a}, da.chunk.sum, fn.in_place_total, axis={axes}, dtype={a}.dtype, split_every=3)
        da.reduction({a}, da.chunk.sum, da.chunk.sum, combine=fn.in_place_greatest, axis={axes}, dtype={a}.dtype, split_every=2)
        da.reduction({a}, fn.total_and_count, fn.mean_of_totals, combine=fn.totals_combined, concatenate=False, axis={axes}, dtype='f8', split_every=2)
        xr.DataArray({a}).groupby(xr.DataArray(np.arange({n}) % 3, dims='dim_0', name='k')).sum().data
        xr.DataArray({a}).rolling(dim_0=2).sum().data   xr.DataArray({a}).cumsum('dim_0').data
        xr.DataArray({a}).coarsen(dim_0=2, boundary='trim').sum().data
        xr.DataArray({a}).weighted(xr.DataArray(np.arange({n}) % 3, dims='dim_0')).sum().data
        xr.DataArray({a}, coords={{'dim_0': pd.date_range('2000', periods={n}, freq='12h')}}).resample(dim_0='1D').sum().data
        xr.DataArray({a}).where(xr.DataArray({a}) > 0).count('dim_0').data
        da.ma.count({a}, {axes})   xr.DataArray({a}).diff('dim_0').data
        da.bincount(abs({a}).astype('i8').ravel(), minlength=5)
        {a}.map_overlap(fn.neighbours, depth=1, boundary=0)   da.ediff1d({a})
        {a}.map_overlap(fn.neighbours, depth=1, boundary='none')
        da.histogram({a}, bins=4, range=(-4, 4))[0]
    """),
    "grows": lines_of("""
        da.tensordot({a}, {a}, axes=(0, 0))   {a} @ {a}.T
        da.einsum('...i,...i->...', {a}, {a})   da.dot({a}, {a}[..., 0])   da.outer({a}, {a}[0])
        da.vdot({a}, {a})   da.matmul({a}, {a}.T)
    """),
    "means": lines_of("""
        da.average({a}, axis={axis}, weights=np.arange({length}) + 1)
        {a} - {a}.mean(axis={axes}, keepdims=True)   xr.DataArray({a}).mean('dim_0').data
        xr.DataArray({a}).rolling(dim_0=3, min_periods=1).mean().data
        xr.DataArray({a}).groupby(xr.DataArray(np.arange({n}) // 2, dims='dim_0', name='k')).mean().data
        xr.DataArray({a}).coarsen(dim_0=2, boundary='pad').mean().data   da.linalg.norm({a})
        xr.DataArray({a}).weighted(xr.DataArray(np.arange({n}) % 3, dims='dim_0')).mean('dim_0').data
        (lambda x: (x.groupby('k') - x.groupby('k').mean()).data)(xr.DataArray({a}).assign_coords(k=('dim_0', np.arange({n}) % 2)))
        xr.DataArray({a}, coords={{'dim_0': pd.date_range('2000', periods={n}, freq='D')}}).groupby('dim_0.month').mean().data
        xr.DataArray({a}, coords={{'dim_0': pd.date_range('2000', periods={n}, freq='9h')}}).resample(dim_0='1D').mean().data
    """),
    "rough": lines_of("""
        xr.DataArray({a}).std('dim_0', ddof=1).data   xr.DataArray({a}).var().data
        da.std({a}, axis={axes}, ddof=1)
    """),
    "keeps": lines_of("""
        da.median({a}, axis={axis})   da.nanmedian({a}, axis={axis})   da.topk({a}, 2, {axis})
        da.ptp({a}, {axis})   xr.DataArray({a}).max().data
        xr.DataArray({a}).quantile(0.5, 'dim_0').data
        xr.DataArray({a}).rolling(dim_0=2).max().data   xr.DataArray({a}).fillna(1).data
        da.apply_along_axis(np.max, {axis}, {a})
        da.coarsen(np.max, {a}, {{0: 2}}, trim_excess=True)
        da.percentile({a}.ravel(), [50], method='nearest')
        xr.DataArray({a}).groupby(xr.DataArray(np.arange({n}) % 3, dims='dim_0', name='k')).max().data
        da.reduction({a}, fn.greatest, fn.greatest, axis={axes}, dtype={a}.dtype, split_every=2)
        da.reduction({a}, da.chunk.min, da.chunk.min, axis={axes}, dtype={a}.dtype, concatenate=True)
    """),
    "jumps": lines_of("""
        da.argmin({a}, {axis})   da.argmax({a}, {axis}, split_every=2)
        da.nanargmax({a}, {axis})   da.argmax({a})   da.nanargmin({a})
        da.argmin({a}, {axis}, keepdims=True)   da.argtopk({a}, 2, {axis})
        xr.DataArray({a}).argmax('dim_0').data   da.unique({a})   {a}[{a} > 0].sum()
        {a}[{a} > 0].compute_chunk_sizes()   da.argwhere({a})
        xr.DataArray({a}).idxmax('dim_0').data
        xr.DataArray({a}).where(xr.DataArray({a}) > 0).data   da.extract({a} > 0, {a}).max()
        da.flatnonzero({a}).size
    """),
}
#: Parts of an array that are worked on differently, put together along any axis.
PARTS = lines_of("""
    da.concatenate([{a}[:{cut}] + 1, {a}[{cut}:] * 1.0])
    da.concatenate([{a}[{cut}:], {a}[:{cut}]])
    da.concatenate([{a}[:{cut}] * 0.0, {a}[{cut}:] * -0.0])
    da.concatenate([{a}[:{cut}] * 1, {a}[{cut}:] * True])
    da.concatenate([{a}[:{cut}], {a}[:{cut}]], axis={axis})
    da.stack([{a}, {a} * 2], axis={axis})
    da.concatenate([{a}[:{width}], {a}[{width} : 2 * {width}]], axis={axis})
    da.concatenate([{a}[:{width}], {a}[{width} : 2 * {width}]], axis={axis})
    da.concatenate([{a}[:{width}], {a}[2 * {width} : 3 * {width}]])
    da.stack([{a}[0], {a}[-1]], {axis})
    da.concatenate([{a}[i * {width} : (i + 1) * {width}] for i in (0, 2, 1)])
    da.block([[{a}, {a} + 1]])
    da.concatenate([{a}[i * {width} : (i + 1) * {width}] for i in range(3)], axis=-1)
    da.concatenate([{a}[i * {width} : (i + 1) * {width}] for i in range(3)], axis=-1)
""")
#: Blocks that wait for a result of many, or of which a list takes elements.
LATE = {
    "means": lines_of("""
        {a} - {a}.mean()   ({a} - {a}.min()) / (1 + {a}.max() - {a}.min())
        {a} * 2 - {a}.sum(axis=0)   {a} - {a}.mean(axis={axes}, keepdims=True)
        ({a} - {a}.mean())[{list}]   ({a} + {a}.max()).sum(axis={axes})   {a}[{list}] * {a}.sum()
        ({a} - {a}.sum())[:1]
        ({a} - {a}.mean(axis=0))[{index}]   ({a} * {a}.max(axis={axes}, keepdims=True))[{index}]
        ({a} - {a}.min(axis={axes}, keepdims=True)).sum(axis={axes})   ({a} + {a}.max())[{index}]
        ({a} - {a}.sum(axis=0)).max(axis=0)   (({a} + {a}.sum()) > 0).any(axis={axes})
        da.stack([{a}.sum(), ({a} - {a}.mean()).max(), ({a} + {a}.max()).sum(), {a}.max()])
        da.tensordot({a} - {a}.sum(), {a}, axes=(0, 0))   ({a} + {a}.sum()).map_blocks(fn.plus_one)
        da.blockwise(fn.sum_of_blocks, {to}, {a} + {a}.max(), {of}, dtype={a}.dtype)
        ({a} - {a}.min()).map_overlap(fn.neighbours, depth=1, boundary='none')
        {a} + {a}[{list}].sum()
        da.blockwise(fn.sum_of_blocks, {to}, {a}, {of}, dtype={a}.dtype) - {a}.max()
    """),
    "rough": lines_of("""
        (({a} * 2 - {a}.mean()) ** 2).mean(axis={axes})   ({a} - {a}.mean(axis=0)).sum(axis={axes})
        (({a} - {a}.mean(axis={axes}, keepdims=True)) ** 2).sum(axis={axes})
    """),
}
#: Functions that make masked arrays, and functions of these.
MASKS = lines_of("""
    da.ma.masked_equal({a}, 0)   da.ma.masked_greater({a}, 0)   da.ma.masked_inside({a}, 0, 1)
    da.ma.masked_invalid({a})   da.ma.masked_where({a} < 0, {a})
    {a}.map_blocks(fn.masked_zeros)   da.ma.masked_array({a}, mask={a} == 1, fill_value=5)
    da.ma.masked_values({a}, 1)   da.ma.masked_array({a}, mask=True)
    da.where({a} > 0, da.ma.masked_equal({a}, 1), {a})
""")
UNMASKS = lines_of("""
    da.ma.filled({a}, 7)   da.ma.getdata({a})   da.ma.getmaskarray({a})   da.ma.count({a})
    da.ma.fix_invalid({a})   da.ma.set_fill_value({a}, 3)   da.ma.average({a}, axis={axis})
    da.ma.nonzero({a})[0]   da.ma.where({a} > 0, {a}, 2)   da.ma.ones_like({a})
    da.ma.filled({a})
""")
#: Elements that a mask selects, from the array itself or from its arguments.
FILTERED = lines_of("""
    {a}[{a} > 1].sum()   {a}[{a} != 0].max()   {a}[{a} > 0].sum()   {a}[{a} == 2].size
    {a}[{a} > 1].compute_chunk_sizes()   {a}[{a} >= 2].compute_chunk_sizes().sum()
    {a}[({a} > 0) & ({a} < 3)].sum()   {a}[{a} < 0].compute_chunk_sizes()[:3]
    ({a} * 2)[{a} > 1].sum()   {a}[{a} > 1].astype('f8').mean()   {a}[{a} * 2 > 2].sum()
    {a}[~({a} == 0)].compute_chunk_sizes()   {a}[{a} > 1][{a}[{a} > 1] < 3].sum()
    {a}[({a} > 1).rechunk({target})].sum()   da.extract({a} > 1, {a}).sum()
    ({a}[{a} > 2] * 2).sum()   {a}[{a} > 1].map_blocks(np.sort).max()
    {a}[{a} > 1].mean(split_every=2)   {a}[{a} > 1].blocks[:1].sum()
""")
#: Of two arrays.
PAIRS = {
    "grows": lines_of("""
        {a} + {b}   {a} - {b}   {a} * {b}   da.maximum({a}, {b})
        da.map_blocks(np.add, {a}, {b})   da.concatenate([{a}, {b}])   da.stack([{a}, {b}])
        {a} - {b}.max()   da.tensordot({a}, {b}, 1)
        da.blockwise(np.add, {of}, {a}, {of}, {b}, {of}, dtype={a}.dtype)   {a} + {b}.sum()
        ({a}, {b})[1] + ({a}, {b})[0].T   da.concatenate([{a}.ravel(), {b}.ravel()])
        da.hypot({a} * 0, {b} * 0)   xr.where(xr.DataArray({a}) == 1, xr.DataArray({b}), 0).data
        da.outer({a}.ravel()[:5], {b}.ravel()[:5])
    """),
    "jumps": lines_of("""
        da.where({a} > {b}, {a}, {b})   {a} == {b}   da.where({b} > 0, {a}, -1)
        da.ma.masked_where({b} > 0, {a})
    """),
}
#: Lines that are no expressions of one array.
STATEMENTS = lines_of("""
    ({r},) = optimize({a})   ({r},) = optimize(*optimize({a}))
    ({r},) = dask.persist({a}, scheduler='sync')   {r} = {a}.persist(scheduler='sync')
    {r} = {a}.copy(); {r}[{index}] = 1   {r} = {a}.copy(); {r}[{a} == {a}] = 2
    {r} = {a}.copy(); {r}[0] = {a}[-1]   {r}, {r}b = optimize({a}, {a}.T)
    {r} = da.from_array({a}.compute(scheduler='sync'), chunks={a}.chunks)
""")
