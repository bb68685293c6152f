"""CUDA text -> Binary: by NVRTC for a GPU, by g++ for the emulated device."""
