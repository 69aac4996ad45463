"""Evaluation: a task and a prediction become a verdict."""
