"""Public names of gpuplanner and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.core.scenario import Scenario as Scenario
from gpuplanner.decision.study import Study as Study
from gpuplanner.hardware.catalog import facts as facts
from gpuplanner.hardware.gpu_models import load_gpu_model as load_gpu_model
from gpuplanner.hardware.mig_layouts import prove as prove
from gpuplanner.ingest.dataset_folder import open_dataset as open_dataset
from gpuplanner.ingest.source_registry import read as read
from gpuplanner.notebook.forecast_and_cost_panels import ForecastQuestion as ForecastQuestion
from gpuplanner.notebook.forecast_and_cost_views import ahead as ahead
from gpuplanner.notebook.forecast_and_cost_views import costs as costs
from gpuplanner.notebook.forecast_and_cost_views import explore as explore
from gpuplanner.notebook.forecast_and_cost_views import twenty_jobs as twenty_jobs
from gpuplanner.notebook.layout_views import layouts as layouts
from gpuplanner.notebook.study_views import compare as compare
from gpuplanner.notebook.study_views import decide as decide
from gpuplanner.notebook.study_views import evaluate as evaluate
from gpuplanner.notebook.study_views import open_study as open_study
from gpuplanner.notebook.study_views import size as size
from gpuplanner.notebook.views_and_panels import View as View
from gpuplanner.notebook.what_if import whatif as whatif
from gpuplanner.planner.layout_plan import Plan as Plan
from gpuplanner.planner.plan_problem import PlanProblem as PlanProblem
from gpuplanner.planner.plan_search import plan as plan
from gpuplanner.planner.plan_verification import verify as verify

__version__: str
