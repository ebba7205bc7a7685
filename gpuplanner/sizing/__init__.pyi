"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.sizing.learned_memory import PeakModel as PeakModel
from gpuplanner.sizing.learned_memory import format_peak_model as format_peak_model
from gpuplanner.sizing.learned_memory import learn_own_runs as learn_own_runs
from gpuplanner.sizing.learned_memory import read_peak_model as read_peak_model
from gpuplanner.sizing.learned_memory import shipped_peak_model as shipped_peak_model
from gpuplanner.sizing.memory_components import explain_peak as explain_peak
from gpuplanner.sizing.memory_components import peak_gib as peak_gib
from gpuplanner.sizing.memory_trend import peak_trends as peak_trends
from gpuplanner.sizing.mig_speed_law import SpeedLaw as SpeedLaw
from gpuplanner.sizing.mig_speed_law import SpeedModelJobs as SpeedModelJobs
from gpuplanner.sizing.mig_speed_model import SpeedModel as SpeedModel
from gpuplanner.sizing.mig_speed_model import default_speed_model as default_speed_model
from gpuplanner.sizing.mig_speed_model import speed_model_from_json as speed_model_from_json
from gpuplanner.sizing.model_architecture import Architecture as Architecture
from gpuplanner.sizing.model_architecture import parse_architecture as parse_architecture
from gpuplanner.sizing.request_lines_and_gpu_sharing import REQUEST_FORMS as REQUEST_FORMS
from gpuplanner.sizing.request_lines_and_gpu_sharing import GpuRequest as GpuRequest
from gpuplanner.sizing.request_lines_and_gpu_sharing import format_plugin_configs as format_plugin_configs
from gpuplanner.sizing.request_lines_and_gpu_sharing import format_request_lines as format_request_lines
from gpuplanner.sizing.request_lines_and_gpu_sharing import is_gres_type as is_gres_type
from gpuplanner.sizing.request_lines_and_gpu_sharing import recommend_sharing as recommend_sharing
from gpuplanner.sizing.training_job import TrainingJob as TrainingJob
from gpuplanner.sizing.training_run_tables import collect_measured_runs as collect_measured_runs
from gpuplanner.sizing.training_run_tables import list_unread_rows as list_unread_rows
from gpuplanner.sizing.training_run_tables import predict_table as predict_table
