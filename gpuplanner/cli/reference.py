"""Reference page of the commands, made from the commands themselves."""

from __future__ import annotations

from typing import Any

from gpuplanner.cli.app import Exit, app, register_commands

INTRO = """# Commands

Data goes to stdout, talk to stderr. `--json` prints what scripts may rely on. `SCENARIO` is a scenario file, a
folder written by `ingest`, or the word `sample`; `--set KEY=VALUE` changes a field of it.
"""


def commands_markdown() -> str:
    """Reference text of every command with its arguments and options, and of the exit codes.

    Examples
    --------
    >>> "## `gpuplanner verify`" in commands_markdown()
    True
    """
    import typer

    register_commands()
    group: Any = typer.main.get_command(app)
    parts = [INTRO, _exit_codes()]
    for name, command in sorted(_leaves(group, "gpuplanner")):
        parts.append(f"## `{name}`\n\n{(command.help or '').strip()}\n\n{_parameters(command)}")
    return "\n".join(parts)


def _leaves(command: Any, name: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - click's own types
    children = getattr(command, "commands", None)
    if not children:
        return [(name, command)]
    return [leaf for key, child in children.items() for leaf in _leaves(child, f"{name} {key}")]


def _parameters(command: Any) -> str:  # noqa: ANN401
    rows = ["| parameter | meaning |", "|---|---|"]
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        shown = ", ".join(names) if names[0].startswith("-") else parameter.metavar or names[0].upper()
        rows.append(f"| `{shown}` | {(getattr(parameter, 'help', '') or '').strip()} |")
    return "\n".join(rows) + "\n"


def _exit_codes() -> str:
    meanings = {
        Exit.DONE: "done",
        Exit.CHECK_FAILED: "a check failed",
        Exit.USAGE: "wrong use of the command line",
        Exit.BAD_INPUT: "bad input, or an output that cannot be written",
        Exit.INFEASIBLE: "no plan keeps the limits",
        Exit.TIME_LIMIT: "a plan was found, but the time limit was reached before the gap asked for",
        Exit.NOTHING_IN_TIME: "nothing was found in time",
        Exit.MISSING_PART: "an optional library is missing",
        Exit.INTERRUPTED: "interrupted",
        Exit.TERMINATED: "ended by SIGTERM; cleared up as after an interrupt",
    }
    rows = [f"| {code.value} | {text} |" for code, text in meanings.items()]
    return "## Exit codes\n\n| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
