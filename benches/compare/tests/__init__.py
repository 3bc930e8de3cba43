"""Tests of what is pure here. They start nothing.

    python3 -B -m unittest discover -s benches/compare/tests -t benches
"""
