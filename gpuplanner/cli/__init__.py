"""Commands: parse, call one function, print."""


def main() -> None:
    """Run the command line."""
