"""How the embedded voice is made: data, codec, talker, checkpoint. README.md tells the story."""
