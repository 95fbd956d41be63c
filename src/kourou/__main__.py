"""`python -m kourou` is the `kourou` command."""

from kourou.cli import main

if __name__ == "__main__":
    main()
