"""The settings of the core, as structs with bounds. Imports no component.

Public. The configuration is decoded into these; programs that assemble a pipeline use them, too.
"""
