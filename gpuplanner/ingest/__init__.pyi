"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.ingest.bills.bill_summary import difference as difference
from gpuplanner.ingest.bills.bill_summary import gpu_lines as gpu_lines
from gpuplanner.ingest.bills.bill_summary import summarise as summarise
from gpuplanner.ingest.bills.bill_summary import tag_pairs as tag_pairs
from gpuplanner.ingest.bills.bill_summary import totals as totals
from gpuplanner.ingest.bills.bill_summary import unknown_types as unknown_types
from gpuplanner.ingest.bills.bill_summary import with_tenants as with_tenants
from gpuplanner.ingest.dataset import Dataset as Dataset
from gpuplanner.ingest.dataset import gpu_hours as gpu_hours
from gpuplanner.ingest.dataset_folder import open_dataset as open_dataset
from gpuplanner.ingest.dataset_folder import scan_samples as scan_samples
from gpuplanner.ingest.dataset_import import Added as Added
from gpuplanner.ingest.dataset_import import add as add
from gpuplanner.ingest.dataset_import import add_read as add_read
from gpuplanner.ingest.dataset_writer import write_dataset as write_dataset
from gpuplanner.ingest.source_definition import Source as Source
from gpuplanner.ingest.source_registry import SOURCES as SOURCES
from gpuplanner.ingest.source_registry import detect as detect
from gpuplanner.ingest.source_registry import read as read
from gpuplanner.ingest.telemetry.coverage import coverage as coverage
from gpuplanner.ingest.telemetry.coverage import observed_gpu_hours as observed_gpu_hours
from gpuplanner.ingest.telemetry.device_hours import hourly as hourly
from gpuplanner.ingest.telemetry.metric_definitions import RUNGS as RUNGS
from gpuplanner.ingest.telemetry.prometheus import Server as Server
from gpuplanner.ingest.telemetry.prometheus import read_live as read_live
from gpuplanner.ingest.telemetry.telemetry_files import Hints as Hints
