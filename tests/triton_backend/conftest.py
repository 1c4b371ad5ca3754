"""Tests that run in Triton's interpreter, which is what makes them slow."""

from __future__ import annotations

import os

import interpreter

if os.environ.get("TRITON_INTERPRET") == "1":
    interpreter.quicken()
