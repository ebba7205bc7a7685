"""What the panel shows of a study."""

from __future__ import annotations

from decimal import Decimal
from html import escape

from gpuplanner import plot
from gpuplanner.study import Study
from gpuplanner.study.comparison import policy_frame

MEASURES = ("mean_queueing_delay_s", "provisioned_gpu_hours", "activity_provisioned")
WIDTH = 760


def answer_html(study: Study) -> str:
    """The third finding, what is saved in money where that may be claimed, and the policies as a chart."""
    if study.plan is None:
        return f"<p>{escape(study.findings[-1])}</p>"
    saved = study.headline["saved_cost_per_week"]
    chart = plot.chart_to_svg(plot.plot_policies(policy_frame(study, MEASURES)), width=WIDTH)
    worth = "" if saved is None else (
        f"<p>At {study.headline['price_per_gpu_hour']:.2f} {study.headline['currency']} a GPU-hour: "
        f"<b>{Decimal(saved):,.2f} {study.headline['currency']} a week</b>.</p>"
    )  # fmt: skip
    return f"<p>{escape(study.findings[-1])}</p>{worth}{chart}"
