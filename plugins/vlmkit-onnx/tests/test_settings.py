"""Settings of devices and variants: valid values are accepted, misspelled ones refused."""

import msgspec
import pytest

from vlmkit_onnx.settings import ComputeSettings


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_device_is_a_kind_and_may_have_a_number(device: str) -> None:
    assert msgspec.convert({"device": device}, ComputeSettings).device == device


@pytest.mark.parametrize("variant", ["q4", "fp16", "q4f16", "model_int8"])
def test_a_variant_is_a_word_of_file_names(variant: str) -> None:
    assert msgspec.convert({"variant": variant}, ComputeSettings).variant == variant


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "cpu\n"},
        {"device": "cuda:1\n"},
        {"device": "cuda:"},
        {"device": "cuda:\u0661"},
        {"device": " cpu"},
        {"device": ""},
        {"variant": "q4\n"},
        {"variant": "q4\n\n"},
        {"variant": "../q4"},
        {"variant": "*"},
        {"variant": ""},
    ],
)
def test_misspelled_devices_and_variants_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, ComputeSettings)


def test_the_patterns_mean_the_same_to_readers_of_the_json_schema() -> None:
    schema = msgspec.json.encode(msgspec.json.schema(ComputeSettings)).decode()
    assert schema.count('"pattern"') == 2
    for only_python in (r"\\Z", r"\\A", r"\\d", r"(?P"):
        assert only_python not in schema
