"""Published claims put to the test: each with its source, the data, what was measured, and the verdict.

Every claim is a file of :mod:`gpuplanner.lab.claims.published`, which is found by itself. Nothing outside this room
imports it but its door, ``gpuplanner claims``.
"""

from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim, put_to_the_test
from gpuplanner.lab.claims.verdict import VERDICTS

__all__ = ["VERDICTS", "Conditions", "Measured", "PublishedClaim", "put_to_the_test"]
