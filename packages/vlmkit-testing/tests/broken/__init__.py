"""Components that each break one promise of a protocol, and the tests of contracts that kill them.

One module for each contract; it ends in its table. ``test_contracts_catch.py`` tries them all, and
``docs/reference/contracts.md`` lists them (``python -m broken``, in the folder above, writes it).
"""
