"""A decoder as one launch: a program of phases, its checker, its kernel."""
