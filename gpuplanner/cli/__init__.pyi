"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.cli.application import main as main
from gpuplanner.cli.start_commands import start as start
