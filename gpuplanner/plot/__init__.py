"""Charts: a frame goes in, an Altair chart comes out. No file is written and no statistics are made here.

The names below are loaded when they are first used, so that ``import gpuplanner.plot`` does not load Altair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import import_optional, late_name

if TYPE_CHECKING:
    from gpuplanner.plot.board import plot_board
    from gpuplanner.plot.bounds import plot_bounds
    from gpuplanner.plot.calibration import (
        plot_wait_causes,
        plot_wait_groups,
        plot_wait_quantiles,
        wait_causes_text,
        wait_groups_text,
        wait_quantiles_text,
    )
    from gpuplanner.plot.compare import frontier_text, plot_frontier, plot_policies, policies_text
    from gpuplanner.plot.costs import plot_costs
    from gpuplanner.plot.coverage import coverage_text, intake_text, plot_coverage, plot_intake
    from gpuplanner.plot.demand import (
        plot_backtest_scores,
        plot_cost_curve,
        plot_demand,
        plot_fan,
        plot_run_out,
    )
    from gpuplanner.plot.fairness import (
        borrowing_text,
        entitlements_text,
        plot_borrowing,
        plot_entitlements,
        plot_tenant_shares,
    )
    from gpuplanner.plot.held_time import plot_held_activity, plot_held_states
    from gpuplanner.plot.layout import plot_layout_calendar, plot_layout_counts
    from gpuplanner.plot.ledger import plot_ledger, plot_ledger_tenants
    from gpuplanner.plot.memory import plot_memory_stack, plot_pooled
    from gpuplanner.plot.outlook import full_text, peaks_text, plot_full, plot_peaks
    from gpuplanner.plot.phases import plot_phases
    from gpuplanner.plot.quality import plot_quality, quality_text
    from gpuplanner.plot.render import (
        NAMES_SHARE,
        chart_spec,
        chart_to_svg,
        charts_to_svg,
        enable_offline_renderer,
        fitted,
        picture_html,
        spec_to_svg,
        svg_address,
    )
    from gpuplanner.plot.signatures import plot_signatures
    from gpuplanner.plot.speed import plot_speed_accuracy, plot_speeds
    from gpuplanner.plot.theme import (
        bucket_colours,
        described,
        layout_colours,
        policy_colours,
        tenant_colours,
    )

_HOME = {
    "NAMES_SHARE": "render",
    "borrowing_text": "fairness",
    "bucket_colours": "theme",
    "chart_spec": "render",
    "chart_to_svg": "render",
    "charts_to_svg": "render",
    "coverage_text": "coverage",
    "described": "theme",
    "enable_offline_renderer": "render",
    "entitlements_text": "fairness",
    "fitted": "render",
    "frontier_text": "compare",
    "full_text": "outlook",
    "intake_text": "coverage",
    "layout_colours": "theme",
    "peaks_text": "outlook",
    "picture_html": "render",
    "plot_backtest_scores": "demand",
    "plot_board": "board",
    "plot_borrowing": "fairness",
    "plot_bounds": "bounds",
    "plot_cost_curve": "demand",
    "plot_costs": "costs",
    "plot_coverage": "coverage",
    "plot_demand": "demand",
    "plot_entitlements": "fairness",
    "plot_fan": "demand",
    "plot_frontier": "compare",
    "plot_full": "outlook",
    "plot_held_activity": "held_time",
    "plot_held_states": "held_time",
    "plot_intake": "coverage",
    "plot_layout_calendar": "layout",
    "plot_layout_counts": "layout",
    "plot_ledger": "ledger",
    "plot_ledger_tenants": "ledger",
    "plot_memory_stack": "memory",
    "plot_peaks": "outlook",
    "plot_phases": "phases",
    "plot_policies": "compare",
    "plot_pooled": "memory",
    "plot_quality": "quality",
    "plot_run_out": "demand",
    "plot_signatures": "signatures",
    "plot_speed_accuracy": "speed",
    "plot_speeds": "speed",
    "plot_tenant_shares": "fairness",
    "plot_wait_causes": "calibration",
    "plot_wait_groups": "calibration",
    "plot_wait_quantiles": "calibration",
    "policies_text": "compare",
    "policy_colours": "theme",
    "quality_text": "quality",
    "spec_to_svg": "render",
    "svg_address": "render",
    "tenant_colours": "theme",
    "wait_causes_text": "calibration",
    "wait_groups_text": "calibration",
    "wait_quantiles_text": "calibration",
}

__all__ = [
    "NAMES_SHARE",
    "borrowing_text",
    "bucket_colours",
    "chart_spec",
    "chart_to_svg",
    "charts_to_svg",
    "coverage_text",
    "described",
    "enable_offline_renderer",
    "entitlements_text",
    "fitted",
    "frontier_text",
    "full_text",
    "intake_text",
    "layout_colours",
    "peaks_text",
    "picture_html",
    "plot_backtest_scores",
    "plot_board",
    "plot_borrowing",
    "plot_bounds",
    "plot_cost_curve",
    "plot_costs",
    "plot_coverage",
    "plot_demand",
    "plot_entitlements",
    "plot_fan",
    "plot_frontier",
    "plot_full",
    "plot_held_activity",
    "plot_held_states",
    "plot_intake",
    "plot_layout_calendar",
    "plot_layout_counts",
    "plot_ledger",
    "plot_ledger_tenants",
    "plot_memory_stack",
    "plot_peaks",
    "plot_phases",
    "plot_policies",
    "plot_pooled",
    "plot_quality",
    "plot_run_out",
    "plot_signatures",
    "plot_speed_accuracy",
    "plot_speeds",
    "plot_tenant_shares",
    "plot_wait_causes",
    "plot_wait_groups",
    "plot_wait_quantiles",
    "policies_text",
    "policy_colours",
    "quality_text",
    "spec_to_svg",
    "svg_address",
    "tenant_colours",
    "wait_causes_text",
    "wait_groups_text",
    "wait_quantiles_text",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    if name in _HOME:
        import_optional("altair", extra="plot")
    return late_name(__name__, _HOME, name)


def __dir__() -> list[str]:
    return __all__
