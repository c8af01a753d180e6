"""Published numbers beside a run's own: sections of the report of `compare_lengths`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from attnlab.bench import trends
from attnlab.bench.case import Result
from attnlab.runs.markdown import markdown_table
from attnlab.runs.published import Table, read

LRA = "lra2020_table2.csv"
FLASH_FORWARD = "flashattention2022_table18.csv"
FLASH_BOTH = "flashattention2022_table20.csv"
FLASH_MEMORY = "flashattention2022_table21.csv"

Ratios = dict[int, float]  # length -> ratio


def load(folder: Path) -> dict[str, Table]:
    """The tables that `sections` needs, by file name.

    Raises:
      Invalid: a table is missing, or does not say where it comes from.
    """
    return {name: read(folder / name) for name in (LRA, FLASH_FORWARD, FLASH_BOTH, FLASH_MEMORY)}


def sections(results: Sequence[Result], tables: Mapping[str, Table]) -> list[str]:
    """LSH attention relative to exact attention: the run's ratios beside the published ones.

    Args:
      results: rows of the run.
      tables: published tables by file name, as `load` returns them.

    Returns:
      Markdown with headings; empty if no published length is one at which the run has both `lsh`
      and exact multi-head attention.
    """
    parts = [*_lra(results, tables[LRA]), *_flash(results, tables)]
    return ["## Paper beside ours", _OURS, *parts] if parts else []


def _lra(results: Sequence[Result], table: Table) -> list[str]:
    exact = _first(results, ("dense", None, "blockwise", "cudnn"))
    if exact is None:
        return []
    ours = _ratios(results, exact, "lsh", "forward_backward", trends.seconds)
    rows, paper, common = [], {}, {}
    for thousands in (1, 2, 3, 4):
        published = table.ratio("Reformer", "Transformer", f"steps_per_s_{thousands}K")
        for n in (1000 * thousands, 1024 * thousands):  # "1K" may mean either
            if published is not None and n in ours:
                paper[n], common[n] = published, ours[n]
                rows.append([f"{thousands}K", str(n), _times(published), _times(ours[n])])
    if not rows:
        return []
    header = [
        "length",
        "n, ours",
        "paper: Reformer over Transformer [1]",
        f"ours: lsh over {exact}",
    ]
    return [
        "### Speed relative to exact attention: Long Range Arena, Table 2",
        markdown_table(header, rows),
        f"Above 1 is faster. Paper: Reformer is {_faster(paper)} Ours: `lsh` is {_faster(common)}",
        "The paper: training steps a second of a whole model, batch 32. Here: "
        f"{_BOTH} of {_what(results[0])}.",
        _NOT_REFORMER,
        f"[1] {table.cite('Reformer', 'Transformer')}",
    ]


def _flash(results: Sequence[Result], tables: Mapping[str, Table]) -> list[str]:
    exact = _first(results, ("blockwise", None, "cudnn"))
    if exact is None:
        return []
    quantities = (
        ("memory", FLASH_MEMORY, "memory_MB", "forward_backward", trends.memory),
        ("time, forward", FLASH_FORWARD, "ms", "forward", trends.seconds),
        (f"time, {_BOTH}", FLASH_BOTH, "ms", "forward_backward", trends.seconds),
    )
    header, columns, verdicts, sources = ["n"], [], [], []
    for name, file, unit, passes, value in quantities:
        table = tables[file]
        ours = _ratios(results, "lsh", exact, passes, value)
        paper = {
            n: ratio
            for n in ours
            if (ratio := table.ratio("Reformer", "FlashAttention", f"{unit}_{n}")) is not None
        }
        if not paper:
            continue
        columns += [paper, ours]
        verdicts.append(f"- {name}: {_verdict(paper, ours)}")
        sources.append(f"[{len(verdicts)}] {table.cite('Reformer', 'FlashAttention')}")
        header += [f"{name}: paper [{len(verdicts)}]", "ours"]
    if not columns:
        return []
    lengths = sorted({n for paper in columns[::2] for n in paper})
    rows = [[str(n), *(_times(c[n]) if n in c else "" for c in columns)] for n in lengths]
    return [
        "### Cost of LSH relative to exact attention in linear memory: FlashAttention, Appendix E",
        "*Paper*: the reference Reformer over FlashAttention. "
        f"*Ours*: `lsh` over `{exact}`. Below 1 is cheaper than exact attention.",
        markdown_table(header, rows),
        "\n".join(verdicts),
        "The paper: the attention function alone on an A100, batch 16, half precision, without "
        f"dropout and masking. Here: {_what(results[0])}. Memory is that of {_BOTH}.",
        "\n\n".join(sources),
    ]


def _first(results: Sequence[Result], ways: Sequence[str | None]) -> str | None:
    """The label of exact multi-head attention, by the first of `ways` that the run has."""
    found = {
        r.case.implementation: r.case.label for r in results if r.case.mechanism == "multi_head"
    }
    return next((found[way] for way in ways if way in found), None)


def _ratios(
    results: Sequence[Result],
    above: str,
    below: str,
    passes: str,
    value: Callable[[Result], float | None],
) -> Ratios:
    lines = trends.lines(results, passes, value)
    top, bottom = lines.get(above, {}), lines.get(below, {})
    return {n: top[n] / bottom[n] for n in top if n in bottom}


def _faster(ratios: Ratios) -> str:
    """`faster at n = 2048, 4096 (1.50× to 2.10×) and not faster at n = 1024 (0.800×).`."""
    faster = {n: ratio for n, ratio in ratios.items() if ratio > 1}
    others = {n: ratio for n, ratio in ratios.items() if ratio <= 1}
    parts = [
        f"{word} at n = {_listed(chosen)} ({_range(chosen)})"
        for word, chosen in (("faster", faster), ("not faster", others))
        if chosen
    ]
    return " and ".join(parts) + "."


def _verdict(paper: Ratios, ours: Ratios) -> str:
    """At which of the common lengths our ratio is the lower one."""
    common = {n: ours[n] for n in paper}
    lower = [n for n in paper if ours[n] < paper[n]]
    cheaper = [n for n in paper if ours[n] < 1]
    return (
        f"paper {_range(paper)}, ours {_range(common)}: lower than the paper's "
        f"{_at(lower, paper)}, below exact attention {_at(cheaper, paper)}."
    )


def _at(lengths: Sequence[int], of: Collection[int]) -> str:
    if len(lengths) == len(of):
        return "at every common length"
    return f"at n = {_listed(lengths)} only" if lengths else "at no common length"


def _listed(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, lengths))


def _range(ratios: Ratios) -> str:
    low, high = _times(min(ratios.values())), _times(max(ratios.values()))
    return low if low == high else f"{low} to {high}"


def _times(ratio: float) -> str:
    """Three digits: `14.4×`, `0.543×`, `200×`."""
    return f"{ratio:.0f}×" if ratio >= 99.95 else f"{ratio:#.3g}×"


def _what(result: Result) -> str:
    case = result.case
    what = "the attention function alone"
    if not case.ops_only:
        what = "one layer with its projections and parameters, which draw the ratios towards 1"
    causal = "causal" if case.causal else "not causal"
    return f"{what}; batch {case.batch}, {case.dtype}, {causal}, on the device named above"


_BOTH = "forward + backward"
_OURS = (
    "Ratios only: batch, model and hardware differ, so times and sizes do not compare. A length is "
    "shown where the run has it for `lsh` and for exact multi-head attention. `multi_head` alone "
    "is the library's own choice: cuDNN's flash on NVIDIA where it serves, blockwise elsewhere."
)
_NOT_REFORMER = (
    "LRA measured code that is not Reformer (`lra_benchmarks/models/reformer` of its repository): "
    "by default it cuts a sequence of any length into 10 chunks, so its cost grows with the square "
    "of the length; keys are not normalized, logits are multiplied by √d, and nothing is masked."
)
