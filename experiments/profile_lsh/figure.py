"""The figure of a profile, shares over length: a pure function of its rows."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from attnlab.bench.case import PASS_TITLES, PASSES
from attnlab.runs import figure_files, palette
from attnlab.runs.units import duration
from experiments.profile_lsh.profile import Profile
from experiments.profile_lsh.report import chosen
from experiments.profile_lsh.stages import STAGES

_COLORS = dict(zip(STAGES, (*palette.STAGES, palette.MUTED), strict=True))
_LABELLED = 0.045  # smaller shares have no room for their number


def draw(profiles: Sequence[Profile]) -> Figure | None:
    """Stacked bars of the shares: one per length, a panel per pass; None if no case ran."""
    done = [profile for profile in profiles if profile.status == "ok"]
    shown = [passes for passes in PASSES if chosen(done, passes)]
    if not shown:
        return None
    bars = max(len(chosen(done, passes)) for passes in shown)
    case = done[0].case
    with figure_files.style():
        figure = Figure(figsize=(max(0.85 * bars * len(shown), 4.0) + 2.3, 4.6))
        width = figure.get_figwidth()
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        left = 0.75 / width
        figure.subplots_adjust(left, 0.11, 1 - 1.0 / width, 0.78, wspace=0.12)
        for axes, passes in zip(panels, shown, strict=True):
            _bars(axes, chosen(done, passes))
            axes.set_title(PASS_TITLES[passes], pad=18)
        panels[0].set_ylabel("share of the time")
        panels[-1].legend(
            loc="center left", bbox_to_anchor=(1.01, 0.5), reverse=True, frameon=False
        )
        title = (
            "Where the time of LSH attention goes; above the bars, the time of one call\n"
            f"batch {case.batch}, {case.num_heads} heads × {case.head_dim}, {case.mechanism}, "
            f"C = {case.chunk_size}, {case.dtype}{', causal' if case.causal else ''}"
        )
        figure.text(left, 0.985, title, fontsize=9.5, va="top", linespacing=1.5)
    return figure


def _bars(axes: Any, profiles: Sequence[Profile]) -> None:
    places = range(len(profiles))
    base = [0.0] * len(profiles)
    for stage in STAGES:
        heights = [profile.shares[stage] for profile in profiles]
        axes.bar(places, heights, 0.8, base, color=_COLORS[stage], label=stage, linewidth=0)
        for x, height, low in zip(places, heights, base, strict=True):
            if height >= _LABELLED:
                dark = stage in ("hash", "attend", "other")
                axes.text(
                    x, low + height / 2, f"{height:.0%}", ha="center", va="center", fontsize=8,
                    color="white" if dark else "black",
                )  # fmt: skip
        base = [low + height for low, height in zip(base, heights, strict=True)]
    for x, profile in zip(places, profiles, strict=True):
        axes.text(
            x, 1.01, duration(profile.median_seconds), ha="center", va="bottom", fontsize=8,
            color=palette.MUTED,
        )  # fmt: skip
    axes.set_xticks(places, [str(profile.case.length) for profile in profiles])
    axes.set_xlabel("length n (tokens)")
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.tick_params(axis="x", length=0)
