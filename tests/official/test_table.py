"""The table of clients in the docs is of the versions that are tested here."""

from __future__ import annotations

from tests.official import table


def test_every_client_of_the_table_speaks_in_the_version_that_is_tested_here() -> None:
    rows = table.read()
    assert rows
    assert [row.version for row in rows] == [table.version(row.client) for row in rows]
    assert {row.result for row in rows} == {"speaks"}


CLIENTS = {
    "Pipecat {}": ("ElevenLabsTTSService", "CartesiaTTSService", "DeepgramTTSService",
                   "OpenAITTSService", "TalkwireTTSService"),
    "LiveKit {}": ("elevenlabs.TTS", "cartesia.TTS", "deepgram.TTS", "openai.TTS"),
    "{} (Python)": ("openai", "elevenlabs", "cartesia", "deepgram-sdk"),
    "{} (JavaScript)": ("openai", "@elevenlabs/elevenlabs-js", "@cartesia/cartesia-js",
                        "@deepgram/sdk"),
}  # fmt: skip


def test_every_vendors_and_frameworks_client_is_in_the_table() -> None:
    wanted = {form.format(name) for form, names in CLIENTS.items() for name in names}
    assert wanted <= {row.client for row in table.read()}
