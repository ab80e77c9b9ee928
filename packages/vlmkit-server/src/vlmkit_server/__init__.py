"""The HTTP server: OpenAI's and Anthropic's APIs in front of runners.

``apis`` has a package for each API, with its routes in ``route`` and its bodies in ``wire``; each
translates its requests into those of ``openai_chat``. ``wire`` has the fields that bodies share,
``exchange`` the requests in progress, ``fleet`` the models, and ``http`` HTTP itself. Import from
the modules below it.
"""
