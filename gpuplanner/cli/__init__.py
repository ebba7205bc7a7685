"""The command line: parse, call one function, print. Data on stdout, talk on stderr."""

from gpuplanner.cli.app import main

__all__ = ["main"]
