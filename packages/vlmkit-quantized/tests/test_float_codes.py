"""Floats of few bits have the values that another library gives them."""

import numpy as np
import pytest

from vlmkit_quantized import float_codes

ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (float_codes.E2M1, "float4_e2m1fn"),
        (float_codes.E4M3, "float8_e4m3fn"),
        (float_codes.E8M0, "float8_e8m0fnu"),
    ],
)
def test_codes_have_the_values_of_their_format(values: np.ndarray, name: str) -> None:
    codes = np.arange(len(values)).astype(np.uint8)
    wanted = codes.view(getattr(ml_dtypes, name)).astype(np.float32)

    np.testing.assert_array_equal(values, wanted)
