"""The documented table of clients: versions, results and completeness."""

from __future__ import annotations

from tests.official import table


def test_table_has_tested_versions_and_only_successes() -> None:
    rows = table.read()
    assert rows
    assert [row.version for row in rows] == [table.version(row.client) for row in rows]
    assert {row.result for row in rows} == {"speaks"}


CLIENTS = {
    "Pipecat {}": ("ElevenLabsTTSService", "ElevenLabsDialogueTTSService", "CartesiaTTSService",
                    "DeepgramTTSService", "DeepgramFluxTTSService", "OpenAITTSService",
                    "TalkwireTTSService"),
    "LiveKit {}": ("elevenlabs.TTS", "elevenlabs.TTS (eleven_v3)", "cartesia.TTS", "deepgram.TTS",
                    "deepgram.TTSv2", "inference.TTS", "openai.TTS", "talkwire.TTS"),
    "{} (Python)": ("openai", "elevenlabs", "cartesia", "deepgram-sdk"),
    "{} (JavaScript)": ("openai", "@elevenlabs/elevenlabs-js", "@cartesia/cartesia-js",
                        "@deepgram/sdk"),
}  # fmt: skip


def test_table_includes_all_supported_clients() -> None:
    wanted = {form.format(name) for form, names in CLIENTS.items() for name in names}
    assert wanted <= {row.client for row in table.read()}
