"""What ``nox -s release`` checks of built distributions, without any source of the repository."""
