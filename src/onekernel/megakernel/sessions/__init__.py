"""Many sessions in one launch, which share each reading of the weights: the same phases, with a vector for each."""
