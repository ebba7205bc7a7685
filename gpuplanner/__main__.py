"""Run the command line as ``python -m gpuplanner``."""

from gpuplanner.cli.application import main

main()
