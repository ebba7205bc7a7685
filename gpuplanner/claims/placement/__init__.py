"""The orders of arrival of published placement experiments."""

from gpuplanner.claims.placement.published import published_arrivals

__all__ = ["published_arrivals"]
