"""Protocol cases: requirements of other servers' tests, and the answers of this server.

Each case comes from a public test of llama.cpp's or vLLM's server and is rewritten here. It has a
request, requirements for the answer, and a verdict. ``test_protocol_cases.py`` sends the cases to
server processes. ``protocol_page.py`` writes ``docs/reference/protocol-cases.md`` from them.
"""
