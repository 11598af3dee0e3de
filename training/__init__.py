"""The making of the embedded voice: data, codec, talker, checkpoint. README.md describes it."""
