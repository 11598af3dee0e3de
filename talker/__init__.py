"""The talker: an out-of-tree vLLM plugin, its prompts, and the engine around it."""
