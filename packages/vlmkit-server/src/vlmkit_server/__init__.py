"""The HTTP server: OpenAI's and Anthropic's APIs in front of runners.

One folder an API, with its routes in ``route`` and its bodies in ``wire``; each says what
it means in the words of ``chat``. Below lie what bodies share (``fields``), the requests under way
(``work``), the models (``fleet``) and HTTP itself (``http``). Import from the modules below it.
"""
