"""`python -m allocembed` is the command line."""

from allocembed.cli.main import main

if __name__ == "__main__":
    main()
