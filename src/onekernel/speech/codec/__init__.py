"""The 12.5 Hz codec in plain PyTorch: codes to samples as a stream, samples to codes as a whole. Needs torch."""
