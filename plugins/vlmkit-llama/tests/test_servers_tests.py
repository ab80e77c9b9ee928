"""Tests of the server in front of this engine, in place of the mock.

Left out are those that script the mock's answers, or state its tokens; ``test_apis_over_http.py``
has others for them.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anthropic
import openai
import pytest

pytest.importorskip("llguidance")
sys.path.append(str(Path(__file__).parents[3] / "packages/vlmkit-server/tests"))

import test_embeddings
import test_prompt_logprobs
import test_sampling_fields
import test_scores
import test_tools
from running_server import Running

import test_constraints_over_http
import test_tools_over_http

pytestmark = [pytest.mark.torch, pytest.mark.server, pytest.mark.posix, pytest.mark.slow]

OF_THE_MOCK = {
    test_constraints_over_http: {
        "test_an_answer_with_a_required_tool_call_has_no_text",
    },
    test_embeddings: {
        "test_the_client_receives_the_embeddings_of_the_python_api",
        "test_a_conversation_with_images_has_an_embedding",
    },
    test_prompt_logprobs: {
        "test_prompt_logprobs_of_a_chat_equal_those_of_the_python_api",
        "test_image_tokens_have_no_prompt_logprobs_and_later_tokens_have",
        "test_prompt_logprobs_cover_tools_and_options",
    },
    test_sampling_fields: {
        "test_bad_words_are_not_in_the_answer",
        "test_allowed_token_ids_restrict_the_answer",
        "test_penalties_apply_only_to_their_window",
        "test_dry_ends_a_loop_unless_breakers_or_allowed_length_permit_it",
        "test_xtc_drops_likely_tokens_repeatably_for_a_seed",
    },
    test_scores: set(),
    test_tools: {
        "test_a_stream_has_the_same_calls_in_pieces",
        "test_an_answer_with_only_tool_calls_has_no_content",
        "test_calls_and_results_can_be_sent_back_unchanged",
        "test_the_mark_of_a_call_cut_off_by_max_tokens_is_not_in_the_answer",
        "test_tool_call_marks_are_text_in_a_request_without_tools",
        "test_tool_calls_follow_reasoning_and_text",
        "test_tool_choice_none_bans_the_tool_call_token",
        "test_unconstrained_tool_calls_are_reported_without_a_compiler",
    },
    test_tools_over_http: set(),
}
"""Tests that script the mock's answers, or state its tokens."""

ENGINE = {"max_sequences": 1, "prefix_cache": False}
"""Some tests compare results without rounding, and sums of this engine depend on the batch."""

SERVED = {"server", "client", "served"}


@pytest.fixture(scope="module")
def served(server: Running) -> tuple[str, str]:
    """Return what the tests of tools ask for: name and address."""
    return "mock", server.url


@pytest.fixture
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[object]:
    """Return the client that a test asks for, which depends on its module."""
    if "served" in request.fixturenames:
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
            yield made
    else:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
            yield other.chat.completions


def _tests(module: ModuleType) -> dict[str, object]:
    """Return the tests that ask for the server of a fixture."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("test_")
        and inspect.isfunction(value)
        and SERVED & inspect.signature(value).parameters.keys()
    }


for _module, _left_out in OF_THE_MOCK.items():
    _found = _tests(_module)
    assert not _left_out - _found.keys(), "a test has another name"
    assert not globals().keys() & _found.keys(), "two tests have one name"
    globals().update({name: _found[name] for name in _found.keys() - _left_out})
