"""The requests of ``same_answers.py``, and the recording and comparison of answers."""
