"""The error of an unsupported type or value lists the supported ones, with its location."""

import pytest
from running_server import chat

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BOGUS = {"type": "bogus"}


def message(role, *parts):
    return [{"role": role, "content": [*parts]}]


def image(**source):
    return {"type": "image", "source": source}


CASES = [
    (CHAT, {"messages": message("user", BOGUS)}, "text, image_url, file"),
    (CHAT, {"messages": message("system", BOGUS)}, "text"),
    (CHAT, {"messages": message("bogus")}, "system, developer, user, assistant, tool"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [BOGUS]}]}, "function"),
    (CHAT, {"tool_choice": BOGUS}, "function"),
    (CHAT, {"tool_choice": "bogus"}, "auto, none, required"),
    (CHAT, {"tools": [BOGUS], "tool_choice": "required"}, "function"),
    (CHAT, {"tools": [BOGUS | {"function": {"name": "x"}}]}, "function"),
    (CHAT, {"response_format": BOGUS}, "text, json_object, json_schema"),
    (MESSAGES, {"messages": message("user", BOGUS)}, "text, image, document, tool_result"),
    (MESSAGES, {"messages": message("assistant", BOGUS)},
     "text, thinking, redacted_thinking, tool_use, mcp_tool_use, mcp_tool_result"),
    (MESSAGES, {"messages": message("bogus")}, "system, user, assistant"),
    (MESSAGES, {"messages": message("user", image(type="bogus"))}, "base64, url, file"),
    (MESSAGES, {"messages": message("user", image(type="base64", media_type="image/x", data=""))},
     "image/gif, image/jpeg, image/jpg, image/png, image/webp"),
    (MESSAGES, {"messages": message("user", {"type": "document", "source": BOGUS})},
     "base64, text, content, url, file"),
    (MESSAGES, {"tool_choice": BOGUS}, "auto, any, tool, none"),
    (MESSAGES, {"tools": [BOGUS | {"name": "x", "input_schema": {}}]}, "custom"),
    (MESSAGES, {"thinking": BOGUS}, "enabled, adaptive, disabled"),
    (MESSAGES, {"output_config": {"format": BOGUS}}, "json_schema"),
    (RESPONSES, {"input": message("user", BOGUS)},
     "input_text, input_image, input_file, output_text, reasoning_text"),
    (RESPONSES, {"input": message("assistant", {"type": "input_image", "image_url": "x"})},
     "input_text, output_text"),
    (RESPONSES, {"input": message("user", {"type": "reasoning_text", "text": "x"})},
     "input_text, input_image, input_file, output_text"),
    (RESPONSES, {"input": message("bogus")}, "assistant, developer, system, user"),
    (RESPONSES, {"input": [BOGUS]},
     "function_call, function_call_output, item_reference, mcp_call, message, reasoning"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "a", "output": [BOGUS]}]},
     "input_text, input_image, input_file, output_text"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": [BOGUS]}]}, "summary_text"),
    (RESPONSES, {"text": {"format": BOGUS}}, "text, json_object, json_schema"),
    (RESPONSES, {"tools": [BOGUS]}, "function, namespace"),
    (RESPONSES, {"tool_choice": BOGUS}, "function, allowed_tools"),
    (RESPONSES, {"tool_choice": "bogus"}, "auto, none, required"),
    (RESPONSES, {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [BOGUS]}},
     "function"),
    (RESPONSES, {"truncation": "bogus"}, "auto, disabled"),
    (RESPONSES, {"reasoning": {"effort": "bogus"}},
     "high, low, max, medium, minimal, none, xhigh"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "supported"), CASES)
def test_an_unsupported_value_is_refused_with_the_supported_ones(server, path, fields, supported):
    minimal = {"model": "mock", "input": "x"} if path == RESPONSES else chat(max_tokens=4)
    answer = server.post(minimal | fields, path)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].endswith(f"; supported are {supported}")
    assert "bogus" not in error["message"]
    assert len(error["message"]) < 1024


def test_long_texts_beside_an_invalid_value_do_not_change_the_error(server):
    long = message("user", {"type": "text", "text": "x" * 100_000}, BOGUS)
    error = server.post(
        chat(messages=message("system", {"type": "text", "text": "a"}) + long)
    ).json()
    assert error["error"]["param"] == "messages[1].content[1].type"
    assert error["error"]["message"].endswith("; supported are text, image_url, file")
