"""What scripts/gpu_demo and scripts/gpu_vllm share, and the parts of the latter."""
