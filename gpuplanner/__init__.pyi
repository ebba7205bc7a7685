"""Public names of gpuplanner and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.core.scenario import Scenario as Scenario
from gpuplanner.hardware.catalog import facts as facts
from gpuplanner.hardware.gpu_models import load_gpu_model as load_gpu_model
from gpuplanner.hardware.mig_layouts import prove as prove
from gpuplanner.notebook.cluster import Cluster as Cluster
from gpuplanner.notebook.cluster import open as open
from gpuplanner.notebook.cluster import read as read
from gpuplanner.notebook.forecast_and_cost_views import twenty_jobs as twenty_jobs
from gpuplanner.notebook.job_size_views import size as size
from gpuplanner.notebook.layout_views import layouts as layouts
from gpuplanner.notebook.study_views import StudyView as StudyView
from gpuplanner.notebook.study_views import compare as compare
from gpuplanner.notebook.study_views import decide as decide
from gpuplanner.notebook.study_views import open_study as open_study
from gpuplanner.notebook.study_views import wait_curve as wait_curve
from gpuplanner.notebook.views_and_panels import View as View
from gpuplanner.notebook.what_if import whatif as whatif
from gpuplanner.planner.plan_problem import PlanProblem as PlanProblem
from gpuplanner.planner.plan_search import plan as plan
from gpuplanner.planner.plan_verification import verify as verify

__version__: str
