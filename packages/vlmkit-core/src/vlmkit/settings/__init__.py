"""What an operator can set, as bounded values. Imports nothing that runs.

Public: a configuration reads these, and so may programs that assemble a pipeline by hand.
"""
