"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.ingest.bills.bill_summary import add_gpu_hours as add_gpu_hours
from gpuplanner.ingest.bills.bill_summary import add_tenants as add_tenants
from gpuplanner.ingest.bills.bill_summary import compare_costs as compare_costs
from gpuplanner.ingest.bills.bill_summary import find_unknown_types as find_unknown_types
from gpuplanner.ingest.bills.bill_summary import list_tag_pairs as list_tag_pairs
from gpuplanner.ingest.bills.bill_summary import sum_costs as sum_costs
from gpuplanner.ingest.bills.bill_summary import summarise_bill as summarise_bill
from gpuplanner.ingest.dataset import Dataset as Dataset
from gpuplanner.ingest.dataset import gpu_hours as gpu_hours
from gpuplanner.ingest.dataset_folder import open_dataset as open_dataset
from gpuplanner.ingest.dataset_folder import scan_samples as scan_samples
from gpuplanner.ingest.dataset_import import ImportResult as ImportResult
from gpuplanner.ingest.dataset_import import add_dataset as add_dataset
from gpuplanner.ingest.dataset_import import add_files as add_files
from gpuplanner.ingest.dataset_writer import write_dataset as write_dataset
from gpuplanner.ingest.source_definition import Source as Source
from gpuplanner.ingest.source_registry import SOURCES as SOURCES
from gpuplanner.ingest.source_registry import detect_source as detect_source
from gpuplanner.ingest.source_registry import read as read
from gpuplanner.ingest.telemetry.coverage import coverage as coverage
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import aggregate_hourly as aggregate_hourly
from gpuplanner.ingest.telemetry.metric_definitions import ACTIVITY_SOURCES as ACTIVITY_SOURCES
from gpuplanner.ingest.telemetry.prometheus import PrometheusServer as PrometheusServer
from gpuplanner.ingest.telemetry.prometheus import read_live as read_live
from gpuplanner.ingest.telemetry.telemetry_row_parsing import TelemetryOptions as TelemetryOptions
