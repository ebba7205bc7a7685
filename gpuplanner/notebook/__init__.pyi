"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.notebook.cluster_views import ahead as ahead
from gpuplanner.notebook.cluster_views import costs as costs
from gpuplanner.notebook.cluster_views import explore as explore
from gpuplanner.notebook.cluster_views import twenty_jobs as twenty_jobs
from gpuplanner.notebook.forecast_and_cost_panels import CostPanel as CostPanel
from gpuplanner.notebook.forecast_and_cost_panels import ForecastPanel as ForecastPanel
from gpuplanner.notebook.forecast_and_cost_panels import ForecastQuestion as ForecastQuestion
from gpuplanner.notebook.layout_views import LimitsPanel as LimitsPanel
from gpuplanner.notebook.layout_views import layouts as layouts
from gpuplanner.notebook.layout_views import price_html as price_html
from gpuplanner.notebook.study_views import compare as compare
from gpuplanner.notebook.study_views import decide as decide
from gpuplanner.notebook.study_views import evaluate as evaluate
from gpuplanner.notebook.study_views import open_study as open_study
from gpuplanner.notebook.study_views import size as size
from gpuplanner.notebook.usage_panels import ALL_BOARDS as ALL_BOARDS
from gpuplanner.notebook.usage_panels import ExplorePanel as ExplorePanel
from gpuplanner.notebook.usage_panels import GpuModelPanel as GpuModelPanel
from gpuplanner.notebook.usage_panels import SharingPanel as SharingPanel
from gpuplanner.notebook.usage_panels import explore_inbox as explore_inbox
from gpuplanner.notebook.views import View as View
from gpuplanner.notebook.views import files_button as files_button
from gpuplanner.notebook.what_if import WhatIf as WhatIf
from gpuplanner.notebook.what_if import whatif as whatif
