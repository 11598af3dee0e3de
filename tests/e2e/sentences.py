"""Sentences for tests of real speech: everyday words, few of them in more than one sentence."""

SENTENCES = (
    "listen, the river voice can sing until morning.",
    "yesterday my brother saw a yellow bird.",
    "seven people walk together under the warm sun.",
    "the teacher read a story about a silver ship.",
    "open the window, the weather is good today.",
    "every winter the mountain village is white.",
    "our doctor can answer an important question.",
    "a small machine can speak with a strong voice.",
    "tomorrow we travel south to the ocean.",
    "mother never drinks cold water before dinner.",
    "the young king was happy in his garden.",
    "some music helps the children sleep at night.",
)
