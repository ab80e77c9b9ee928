"""Image transforms in answers: returned on request only."""

import base64
import io

import PIL.Image
import pytest
from running_server import chat, running

WITH_TRANSFORMS = {"return_image_transforms": True}


def url(width, height, *, orientation=1, color="teal"):
    content, exif = io.BytesIO(), PIL.Image.Exif()
    exif[0x0112] = orientation
    PIL.Image.new("RGB", (width, height), color).save(content, "JPEG", exif=exif)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


def image_chat(*urls, **fields):
    parts = [
        {"type": "image_url", "image_url": each if isinstance(each, dict) else {"url": each}}
        for each in urls
    ]
    return {
        "model": "mock",
        "messages": [{"role": "user", "content": parts}],
        **WITH_TRANSFORMS,
        **fields,
    }


def image_transforms(server, *urls, **fields):
    answer = server.post(image_chat(*urls, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()["image_transforms"]


@pytest.fixture(scope="module")
def fresh():
    """A server without cached images."""
    with running() as server:
        yield server


def test_the_transform_of_each_image_is_in_the_answer(fresh):
    small = {"url": url(40, 20), "max_image_tokens": 1}
    turned = url(40, 20, orientation=6)
    first, second = image_transforms(fresh, small, turned)

    assert first == {
        "num_tokens": 1,
        "cached": False,
        "transform": {
            "source_size": [40, 20],
            "turned": False,
            "upright_size": [40, 20],
            "used_size": [10, 5],
            "scale": [0.25, 0.25],
            "crop": None,
            "pad": [0, 0, 0, 0],
            "num_tiles": 1,
            "grid": None,
        },
        "page": None,
    }
    assert second["num_tokens"] == 4
    assert second["transform"]["turned"] is True
    assert second["transform"]["source_size"] == [40, 20]
    assert second["transform"]["upright_size"] == [20, 40]


def test_a_repeated_image_is_cached_and_one_of_another_size_is_not(fresh):
    image_url = url(64, 48, color="navy")
    repeated = [image_transforms(fresh, image_url), image_transforms(fresh, image_url)]
    other = image_transforms(fresh, image_url, url(48, 64, color="navy"))
    smaller = image_transforms(fresh, {"url": image_url, "max_image_tokens": 2})

    assert [image["cached"] for images in repeated for image in images] == [False, True]
    assert [image["cached"] for image in other] == [True, False]
    assert [image["cached"] for image in smaller] == [False]
    assert [image["cached"] for image in image_transforms(fresh, image_url, cache_salt="own")] == [
        False
    ]


def test_an_image_twice_in_one_request_is_reported_as_not_cached(fresh):
    image_url = url(32, 24, color="gold")
    assert [image["cached"] for image in image_transforms(fresh, image_url, image_url)] == [
        False,
        False,
    ]


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
def test_transforms_are_in_the_last_event_of_a_stream(fresh, options):
    image_url = url(30, 24, color="pink" if options else "plum")
    stream = fresh.client().chat.completions.create(
        model="mock",
        messages=image_chat(image_url)["messages"],
        stream=True,
        extra_body=WITH_TRANSFORMS,
        **({"stream_options": options} if options else {}),
    )
    *others, last = stream

    assert last.choices == []
    assert (last.usage is not None) == bool(options)
    (image,) = last.image_transforms
    assert (image["num_tokens"], image["cached"]) == (4, False)
    assert not any(hasattr(chunk, "image_transforms") for chunk in others)


def test_transforms_are_absent_unless_requested(fresh):
    body = image_chat(url(20, 20), return_image_transforms=False)
    stream = fresh.post(body | {"stream": True})

    assert "image_transforms" not in fresh.post(body).json()
    assert "image_transforms" not in stream.text


def test_a_conversation_without_images_has_no_transforms(fresh):
    assert fresh.post(chat(**WITH_TRANSFORMS)).json()["image_transforms"] == []


def test_transforms_report_the_cache_state_of_the_first_choice(fresh):
    (image,) = image_transforms(fresh, url(28, 20, color="tan"), n=3)
    assert image["cached"] is False
