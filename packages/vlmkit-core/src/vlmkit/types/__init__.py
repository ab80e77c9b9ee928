"""What is asked and what is answered: messages, images, parameters, requests, completions.

Public: values only. Nothing here computes, waits or knows a component.
"""
