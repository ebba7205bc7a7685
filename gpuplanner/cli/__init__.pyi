"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.cli.application import main as main
from gpuplanner.cli.start_notebook_and_compile_commands import start as start
