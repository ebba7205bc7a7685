"""``python -m gpuplanner`` is the command line, where no script was installed."""

from gpuplanner.cli.application import main

main()
