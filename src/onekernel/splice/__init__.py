"""Back into a runtime: a model is cut at its chains, and the pieces run as sessions and kernels in a loop."""
