"""The neural codec: weights, decoder, batching, and the worker process that runs it."""
