"""Markup in a client's text: what is to be spoken, and how.

Clients and language models write markup in the forms of several vendors: SSML, Cartesia's tags,
ElevenLabs' performance directions, Deepgram's and Kokoro-FastAPI's pauses, LiveKit's markers, the
tags of talker families. :class:`~text.markup.reader.MarkupReader` turns all of them into the same
elements while the text arrives, and :class:`~text.markup.rendering.Rendering` turns these into the
text that one family speaks. docs/reference/markup.md lists the forms.
"""
