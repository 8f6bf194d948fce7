"""What only a GPU can show, run in order of worth by benchmarks/gpu_check.sh."""
