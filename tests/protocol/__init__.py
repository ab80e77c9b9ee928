"""Protocol cases: what tests of other servers hold of answers, and what this server answers.

Each case was read in a public test of llama.cpp's or vLLM's server and written anew: the request,
what must hold of the answer, and a verdict. ``test_protocol_cases.py`` sends them to server
processes, and ``protocol_page.py`` writes ``docs/reference/protocol-cases.md`` of them.
"""
