"""Job lists as simulators exchange them: read, and what is said of their runs."""

from gpuplanner.lab.job_lists.fragments import fragmentation, fragmentation_totals
from gpuplanner.lab.job_lists.reading import read_job_list, totals
from gpuplanner.lab.job_lists.spread import distribution

__all__ = ["distribution", "fragmentation", "fragmentation_totals", "read_job_list", "totals"]
