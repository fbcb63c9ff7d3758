"""Targets and the verdicts of measurements. They are printed, never asserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.model import Figures, Target, Verdict


def speedup_over(peer: str, at_least: float, *only: str) -> Target:
    return Target(
        f"{peer} takes at least {at_least:g} x as long",
        at_least,
        False,
        lambda ours, others: others[peer].median / ours.median,
        peer,
        only,
    )


def times_as_long_as(peer: str, at_most: float, *only: str) -> Target:
    return Target(
        f"takes at most {at_most:g} x as long as {peer}",
        at_most,
        True,
        lambda ours, others: ours.median / others[peer].median,
        peer,
        only,
    )


def milliseconds_more_than(peer: str, at_most: float, *only: str) -> Target:
    return Target(
        f"takes at most {at_most:g} ms longer than {peer}",
        at_most,
        True,
        lambda ours, others: (ours.median - others[peer].median) * 1e3,
        peer,
        only,
    )


def seconds_below(limit: float, *only: str) -> Target:
    return Target(f"under {limit:g} s", limit, True, lambda ours, _: ours.median, only=only)


def counted_at_most(what: str, limit: float, *only: str) -> Target:
    return Target(
        f"at most {limit:g} {what}", limit, True, lambda ours, _: ours.counts[what], only=only
    )


def counted_times_less_than(peer: str, what: str, at_least: float, *only: str) -> Target:
    return Target(
        f"{peer} has at least {at_least:g} x as many {what}",
        at_least,
        False,
        lambda ours, others: others[peer].counts[what] / ours.counts[what],
        peer,
        only,
    )


def megabytes_below(limit: float) -> Target:
    return Target(f"memory under {limit:g} MB", limit, True, lambda ours, _: ours.growth / 1e6)


def resident_below(megabytes: float, *only: str) -> Target:
    return Target(
        f"all resident memory under {megabytes:g} MB",
        megabytes,
        True,
        lambda ours, _: ours.resident_peak / 1e6,
        only=only,
    )


def kilobytes_written_below(limit: float) -> Target:
    return Target(f"file under {limit:g} kB", limit, True, lambda ours, _: ours.written / 1e3)


def completes(*only: str) -> Target:
    return Target("completes", 1, False, lambda ours, _: float(not ours.failure), only=only)


def judge(targets: Sequence[Target], figures: Mapping[str, Figures]) -> list[Verdict]:
    """The verdicts of our contenders on their targets, except for targets without their peer."""
    verdicts = []
    for target in targets:
        peer = figures.get(target.peer) if target.peer else None
        if target.peer and (peer is None or peer.failure):
            continue
        for ours in (one for one in figures.values() if one.is_ours):
            if target.only and ours.contender not in target.only:
                continue
            value = target.value(ours, figures)
            reached = value <= target.limit if target.is_upper_limit else value >= target.limit
            verdicts.append(Verdict(ours.contender, target.text, value, reached))
    return verdicts
