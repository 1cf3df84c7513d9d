"""Backends: one module per framework, each knowing its own layout and nothing of the others."""
