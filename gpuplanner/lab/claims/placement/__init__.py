"""The orders of arrival of published placement experiments."""

from gpuplanner.lab.claims.placement.published import published_arrivals

__all__ = ["published_arrivals"]
