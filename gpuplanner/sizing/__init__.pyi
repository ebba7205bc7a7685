"""What the room offers, and where it is: read by type checkers, and by ``__init__.py`` when a name is first used."""

from gpuplanner.sizing.advice.hints import hints as hints
from gpuplanner.sizing.advice.request_lines import FORMS as FORMS
from gpuplanner.sizing.advice.request_lines import Request as Request
from gpuplanner.sizing.advice.request_lines import is_gres_type as is_gres_type
from gpuplanner.sizing.advice.request_lines import request_lines as request_lines
from gpuplanner.sizing.past_use import REQUEST as REQUEST
from gpuplanner.sizing.past_use import asked_and_used as asked_and_used
from gpuplanner.sizing.past_use import boards_of as boards_of
from gpuplanner.sizing.peak_trend import peak_trends as peak_trends
from gpuplanner.sizing.profile_sizes import slices as slices
from gpuplanner.sizing.profile_sizes import smallest_of_compute as smallest_of_compute
from gpuplanner.sizing.profile_sizes import smallest_profile as smallest_profile
from gpuplanner.sizing.requests import resolve_requests as resolve_requests
from gpuplanner.sizing.requests import unknown_profiles as unknown_profiles
from gpuplanner.sizing.right_profiles import EVIDENCE as EVIDENCE
from gpuplanner.sizing.right_profiles import keep_requests as keep_requests
from gpuplanner.sizing.right_profiles import rightsize as rightsize
from gpuplanner.sizing.shared_gpus import plugin_configs as plugin_configs
from gpuplanner.sizing.shared_gpus import sharing as sharing
