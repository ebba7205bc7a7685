"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.sizing.learned_memory import PeakModel as PeakModel
from gpuplanner.sizing.learned_memory import learned as learned
from gpuplanner.sizing.learned_memory import peak_model_text as peak_model_text
from gpuplanner.sizing.learned_memory import read_peak_model as read_peak_model
from gpuplanner.sizing.learned_memory import shipped_model as shipped_model
from gpuplanner.sizing.memory_components import explained as explained
from gpuplanner.sizing.memory_components import peak_gib as peak_gib
from gpuplanner.sizing.memory_trend import peak_trends as peak_trends
from gpuplanner.sizing.mig_speed_law import SpeedJobs as SpeedJobs
from gpuplanner.sizing.mig_speed_law import SpeedLaw as SpeedLaw
from gpuplanner.sizing.mig_speed_model import SpeedModel as SpeedModel
from gpuplanner.sizing.mig_speed_model import default_model as default_model
from gpuplanner.sizing.mig_speed_model import model_from_json as model_from_json
from gpuplanner.sizing.model_architecture import Architecture as Architecture
from gpuplanner.sizing.model_architecture import describe as describe
from gpuplanner.sizing.request_lines import FORMS as FORMS
from gpuplanner.sizing.request_lines import Request as Request
from gpuplanner.sizing.request_lines import is_gres_type as is_gres_type
from gpuplanner.sizing.request_lines import plugin_configs as plugin_configs
from gpuplanner.sizing.request_lines import request_lines as request_lines
from gpuplanner.sizing.request_lines import sharing as sharing
from gpuplanner.sizing.request_recommendations import hints as hints
from gpuplanner.sizing.run_tables import measured_runs as measured_runs
from gpuplanner.sizing.run_tables import predict_table as predict_table
from gpuplanner.sizing.run_tables import unread_rows as unread_rows
from gpuplanner.sizing.training_job import TrainingJob as TrainingJob
