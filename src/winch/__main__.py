"""`python -m winch`: the same as the `winch` command."""

from winch.cli import main

if __name__ == "__main__":
    main()
