"""Writes the tables into ``docs/reference/contracts.md``."""

from broken.page import PAGE, renewed
from broken.tables import TABLES

PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), TABLES), encoding="utf-8")
