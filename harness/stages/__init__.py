"""The stages: each is a function of a task, a patched tree and a sandbox."""
