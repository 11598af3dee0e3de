"""Pronunciations: which words are spoken in another way than they are written.

A client chooses rules ("Worcester" is /ˈwʊstər/, "k8s" is "kubernetes") from dictionaries of the
server, or sends its own. :class:`~text.pronunciation.matcher.Pronouncer` applies them to the text
as it arrives, between the markup and the talker, as if the client had written ``<phoneme>`` or
``<sub>`` itself.
"""
