"""What the notebook of the twenty jobs shows, part by part: tables, charts, and what they say in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from gpuplanner.lab.claims import twenty_jobs as cases
from gpuplanner.lab.claims.twenty_jobs import charts
from gpuplanner.lab.claims.twenty_jobs.brief import DESIGN_SPACE, implied_slices
from gpuplanner.lab.claims.twenty_jobs.decompose import ONLY_RIGHT_SIZED
from gpuplanner.report import page
from gpuplanner.report.section import Section

if TYPE_CHECKING:
    from altair.typing import ChartType

Shown: TypeAlias = Iterator[Section]

GAINS = {
    "completion_min": ("completion [min]", 1),
    "mean_jct_min": ("mean time in system [min]", 1),
    "utilisation_provisioned": ("utilisation of provisioned slices [points]", 100),
}
"""What a policy gains: words, and what the figure is multiplied by for them."""
MEANS = {
    "completion_min": ".1f",
    "mean_jct_min": ".1f",
    "mean_wait_min": ".1f",
    "utilisation_provisioned": ".1%",
    "utilisation_server": ".1%",
    "utilisation_instances": ".1%",
    "provisioned_slices": ".1f",
    "gpus_on": ".1f",
}
ABLATED = {
    "completion_min_1": ("case 1 [min]", ".1f"),
    "completion_min_2": ("case 2 [min]", ".1f"),
    "time_ratio": ("case 2 / case 1", ".2f"),
    "utilisation_provisioned_1": ("utilisation, case 1", ".1%"),
    "utilisation_provisioned_2": ("utilisation, case 2", ".1%"),
    "utilisation_server_2": ("of the server, case 2", ".1%"),
    "wrong": ("jobs with a wrong profile", ".1f"),
    "restarts": ("jobs out of memory", ".1f"),
}


def table(frame: pl.DataFrame, caption: str, **options: Any) -> Section:  # noqa: ANN401 - as page.table has them
    """A table as a section of its own."""
    return Section(page.table(frame, caption=caption, **options))


def picture(chart: ChartType, finding: str) -> Section:
    """A chart with its finding in words as a section of its own."""
    return Section(page.figure(chart, title=str(chart.title), alt=finding))


def say(*texts: str) -> Section:
    """Paragraphs as a section of their own."""
    return Section("".join(map(page.paragraph, texts)))


def jobs(design: cases.Design) -> Shown:
    """What the jobs need and ask for."""
    groups = [
        {"truly needs": group.need, "asks for": group.asks_for, "jobs": group.jobs, "kind": group.kind}
        for group in design.groups
    ]
    caption = f"{design.jobs} jobs, {design.needed_slices} slices needed, {design.gpus} × {design.board}"
    yield table(pl.DataFrame(groups), caption)


def both_cases(rows: pl.DataFrame) -> Shown:
    """Both cases over all seeds, beside what was reported."""
    values = ("simulated", "sd", "low", "high", "reported", "band_low", "band_high")
    share = pl.col("figure").str.starts_with("utilisation")
    shown = (
        cases.comparison(rows)
        .with_columns(pl.when(share).then(100 * pl.col(name)).otherwise(name).alias(name) for name in values)
        .with_columns(pl.col("figure").str.replace("slices,", "slices [%],"))
    )
    yield table(
        shown,
        f"Simulated, {rows['seed'].n_unique()} seeds, beside what was reported",
        headings={
            "low": "mean, low",
            "high": "mean, high",
            "sd": "sd over seeds",
            "band_low": "band, low",
            "band_high": "band, high",
        },
        formats=dict.fromkeys(values, ".1f"),
    )
    told = (
        f"{each['figure']}: {each['simulated']:.1f}, reported {each['reported']:.1f}"
        for each in shown.iter_rows(named=True)
    )
    yield picture(charts.plot_seeds(rows), f"{'; '.join(told)}.")


def design_space(rows: pl.DataFrame, seed: int) -> Shown:
    """Percentiles over designs drawn blindly, here and in the reference, and where this design lies among them."""
    space = cases.Space()
    drawn = cases.outcomes(cases.draw_designs(space, seed=seed), space)
    words = {
        "time_ratio": "time, case 2 / case 1",
        "utilisation_1": "utilisation, case 1",
        "utilisation_2": "utilisation, case 2",
    }
    here = cases.percentiles(drawn).with_columns(source=pl.lit("drawn here"))
    both = pl.concat([here, DESIGN_SPACE.with_columns(source=pl.lit("reference"))])
    both = both.sort("measure", "source", maintain_order=True).with_columns(pl.col("measure").replace(words))
    fitting = drawn.select(pl.col("fits").mean()).item()
    yield table(
        both.select("measure", "source", pl.exclude("measure", "source")),
        f"Percentiles over {drawn.height:,} designs kept of {space.designs:,} (the reference kept 2,795); "
        f"{fitting:.0%} of them have room for all memory slices at once",
    )
    figures = cases.comparison(rows)["simulated"]
    mine = (figures[2] / figures[0], figures[1], figures[3])
    below = [(drawn[name] < value).mean() for name, value in zip(words, mine, strict=True)]
    columns = ("case_1_min", "utilisation_1", "case_2_min", "utilisation_2")  # as the targets are ordered
    bands = zip(columns, (target.band for target in cases.TARGETS), strict=True)
    inside = drawn.select(
        pl.all_horizontal(pl.col(name).is_between(*band) for name, band in bands).mean()
    ).item()
    yield say(
        f"The calibrated design takes {mine[0]:.2f} of the time of case 1: {below[0]:.0%} of the designs drawn here "
        f"take a smaller share. Its utilisation of case 1, {mine[1]:.1%}, is above that of {below[1]:.0%} of them, "
        f"and that of case 2, {mine[2]:.1%}, above that of {below[2]:.0%}. Inside all four bands lie {inside:.1%}."
    )


def definitions(rows: pl.DataFrame) -> Shown:
    """Three definitions of utilisation, and the identity that ties them to the work."""
    wide = cases.summarise(rows, tuple(MEANS)).pivot("measure", index="policy", values="mean")
    yield table(wide, "Means of all four combinations; three definitions of utilisation", formats=MEANS)
    worst = rows.select(pl.col("identity_error").abs().max()).item()
    yield say(
        f"Largest error of U × C × T against the work drawn, {rows.height} runs: {worst:.1e}.",
        f"The reported figures agree with each other only if case 2 has {implied_slices():.1f} provisioned slices; "
        f"here it has {wide['provisioned_slices'][-1]:.1f}.",
    )


def one_seed(seed: int, design: cases.Design) -> Shown:
    """Who ran where and when, in both cases of one seed."""
    served = {
        "Case 1: as asked, static layout": cases.CASE_1,
        "Case 2: right-sized, planned layouts": cases.CASE_2,
    }
    shown = {name: cases.one(policy, seed, design)[0] for name, policy in served.items()}
    last = pl.col("end_min").max()
    ends = (f"{name}, until minute {one.attempts.select(last).item():.0f}" for name, one in shown.items())
    yield picture(charts.plot_timeline(shown), f"{'; '.join(ends)}.")


def gain(rows: pl.DataFrame) -> Shown:
    """Which part of the gain is right-sizing, and which is layouts."""
    parts = cases.decompose(rows, tuple(GAINS))
    row = {(each["measure"], each["part"]): each for each in parts.iter_rows(named=True)}

    def share(measure: str, part: str) -> str:
        return f"{row[measure, part]['share']:.0%}"

    told = (
        f"{words.partition(' [')[0]}: right-sizing {share(measure, 'right-sizing')}, layouts "
        f"{share(measure, 'layouts')}"
        for measure, (words, _) in GAINS.items()
    )
    yield picture(charts.plot_decomposition(parts), f"{'; '.join(told)}.")
    values = ("first", "last", "shapley", "low", "high")
    yield table(
        _in_words(parts, values),
        "Change from case 1 to case 2, and its parts; 95 % interval of the mean of both orders",
        headings={
            "first": "if taken first",
            "last": "if taken last",
            "shapley": "mean of both",
            "share": "share of the gain",
        },
        formats={"share": ".0%"} | dict.fromkeys(values, "+.2f"),
    )
    means = (
        rows.group_by("policy")
        .agg(pl.col("mean_wait_min", "gpus_on").mean())
        .rows_by_key("policy", unique=True)
    )
    waiting, _ = means[ONLY_RIGHT_SIZED.name]
    saved = means[cases.CASE_1.name][1] - means[cases.CASE_2.name][1]
    yield say(
        f"Right-sizing is {share('completion_min', 'right-sizing')} of the gain in completion time, layouts are "
        f"{share('completion_min', 'layouts')}: right-sized jobs wait {waiting:.1f} min on average for the static "
        "layout as it is, and once they are right-sized, planning layouts changes completion by "
        f"{_signed(row['completion_min', 'layouts']['last'])} min.",
        f"Of the gain in utilisation, right-sizing is {share('utilisation_provisioned', 'right-sizing')} and layouts "
        f"are {share('utilisation_provisioned', 'layouts')}: the plan leaves {saved:.1f} GPUs off, and leaves out "
        "instances that nobody uses.",
        "Layouts alone, without right-sizing, change the mean time in system by "
        f"{_signed(row['mean_jct_min', 'layouts']['first'])} min, and completion by "
        f"{_signed(row['completion_min', 'layouts']['first'])} min.",
    )


def recommender(rows: pl.DataFrame, seeds: Sequence[int], design: cases.Design) -> Shown:
    """How often the recommended profile is wrong, and what that costs."""
    oracle = cases.Policy("needs known (oracle)", "true", "exact")
    mine = rows.filter(policy=cases.CASE_2.name)
    counts = mine.select("right", "larger", "slower", "out of memory").sum()
    total = counts.sum_horizontal().item()
    judged = counts.with_columns(jobs=pl.lit(total), wrong=1 - pl.col("right") / total)
    yield table(judged, "Recommendations by the hidden truth", formats={"wrong": ".2%"})
    both = pl.concat([mine, cases.replicate([oracle], seeds, design)])
    yield table(
        _in_words(cases.differences(both, oracle.name, tuple(GAINS)), ("difference", "low", "high")),
        "What wrong profiles cost: recommender less oracle, seed by seed, 95 % interval",
        formats=dict.fromkeys(("difference", "low", "high"), "+.3f") | {"ratio": ".4f"},
    )


def one_at_a_time(rows: pl.DataFrame, seeds: Sequence[int], design: cases.Design) -> Shown:
    """Both cases with one assumption changed at a time."""
    runs = cases.ablate(cases.ablations(design), seeds, rows)
    measures = (
        ("completion_min", "completion time", "min", 1),
        ("utilisation_provisioned", "utilisation, provisioned", "%", 100),
    )
    summary = [
        {"ablation": name, "case": f"case {case}", "metric": metric, "unit": unit}
        | {key: factor * row[key] for key in ("mean", "low", "high")}
        for (name,), mine in runs.group_by("ablation", maintain_order=True)
        for case in (1, 2)
        for measure, metric, unit, factor in measures
        for row in cases.summarise(mine.with_columns(policy=pl.lit("")), [f"{measure}_{case}"]).iter_rows(
            named=True
        )
    ]
    slowest = runs.group_by("ablation", maintain_order=True).agg(pl.col("time_ratio").mean())
    worst = slowest.sort("time_ratio", maintain_order=True).row(-1, named=True)
    finding = f"Case 2 gains least with {worst['ablation']}: {worst['time_ratio']:.2f} of the time of case 1."
    yield picture(charts.plot_ablations(pl.DataFrame(summary)), finding)
    yield table(
        runs.group_by("ablation", maintain_order=True).agg(pl.col(*ABLATED).mean()),
        f"Means over {len(seeds)} seeds",
        headings={name: heading for name, (heading, _) in ABLATED.items()},
        formats={name: form for name, (_, form) in ABLATED.items()},
    )


def _in_words(frame: pl.DataFrame, values: Sequence[str]) -> pl.DataFrame:
    """The same rows with the words and units of :data:`GAINS`."""
    factor = pl.col("measure").replace_strict({name: by for name, (_, by) in GAINS.items()})
    return frame.with_columns(pl.col(values) * factor).with_columns(
        pl.col("measure").replace({name: words for name, (words, _) in GAINS.items()})
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
