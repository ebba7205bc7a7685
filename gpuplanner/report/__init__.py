"""Charts, pages, workbooks, change bundles and monthly reports."""

from gpuplanner.core.execution import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
