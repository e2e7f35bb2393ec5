"""Silos that are organisations elsewhere: what stands at each of them, and what the coordinator has of its own."""
