"""Types of requests and answers: messages, images, parameters, requests, completions.

Public. Values only: nothing here runs a model, waits, or depends on a component.
"""
