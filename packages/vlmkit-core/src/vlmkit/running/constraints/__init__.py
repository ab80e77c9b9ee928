"""Constraints of an answer: compilers, grammar states, token rules, limits, the sandbox."""
