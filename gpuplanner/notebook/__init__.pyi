"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.notebook.cluster import Cluster as Cluster
from gpuplanner.notebook.cluster import open as open
from gpuplanner.notebook.cluster import read as read
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel as CostPanel
from gpuplanner.notebook.forecast_and_cost_panels import ForecastPanel as ForecastPanel
from gpuplanner.notebook.forecast_and_cost_panels import ForecastQuestion as ForecastQuestion
from gpuplanner.notebook.forecast_and_cost_views import costs as costs
from gpuplanner.notebook.forecast_and_cost_views import forecast_demand as forecast_demand
from gpuplanner.notebook.forecast_and_cost_views import twenty_jobs as twenty_jobs
from gpuplanner.notebook.job_size_views import size as size
from gpuplanner.notebook.layout_views import LayoutPanel as LayoutPanel
from gpuplanner.notebook.layout_views import layouts as layouts
from gpuplanner.notebook.period_panel import PeriodPanel as PeriodPanel
from gpuplanner.notebook.quota_panel import SharingPanel as SharingPanel
from gpuplanner.notebook.study_views import StudyView as StudyView
from gpuplanner.notebook.study_views import compare as compare
from gpuplanner.notebook.study_views import decide as decide
from gpuplanner.notebook.study_views import open_study as open_study
from gpuplanner.notebook.study_views import wait_curve as wait_curve
from gpuplanner.notebook.views_and_panels import View as View
from gpuplanner.notebook.views_and_panels import files_button as files_button
from gpuplanner.notebook.what_if import WhatIf as WhatIf
from gpuplanner.notebook.what_if import whatif as whatif
