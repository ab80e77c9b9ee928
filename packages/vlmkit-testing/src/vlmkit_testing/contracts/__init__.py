"""One module for each contract, and what contracts share. Import from ``vlmkit_testing``."""

import pkgutil

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)
