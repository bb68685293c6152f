"""A program as a sequence of launches: for GPUs on which the blocks of one kernel cannot wait for each other."""
