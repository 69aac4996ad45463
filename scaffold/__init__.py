"""The reference agent: Task -> Prediction + Trajectory. Meets the harness in a predictions file only."""
