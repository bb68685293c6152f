"""What a model is given: text as ids, ids as vectors, and a prompt of both."""
