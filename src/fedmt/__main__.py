"""`python -m fedmt` is the program `fedmt`."""

from fedmt.cli.main import main

if __name__ == "__main__":
    main()
