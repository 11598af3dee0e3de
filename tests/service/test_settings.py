from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.gateway import _place
from service.settings import EMBEDDED_MODEL, Settings, SettingsError, load_settings
from talker.settings import TalkerSettings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TALKWIRE_{name.upper()}", raising=False)


def test_settings_precedence_is_command_line_environment_file_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text('port = 1\nhost = "file"\nmax_connections = 3\n')
    monkeypatch.setenv("TALKWIRE_PORT", "2")
    monkeypatch.setenv("TALKWIRE_HOST", "environment")
    settings = load_settings(file, port=3, host=None)
    assert (settings.port, settings.host, settings.max_connections) == (3, "environment", 3)
    assert settings.log_level == "info"


def test_unknown_settings_are_refused_in_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(SettingsError, match="prot"):
        load_settings(file)
    monkeypatch.setenv("TALKWIRE_PROT", "1")
    with pytest.raises(SettingsError, match="TALKWIRE_PROT"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("prot", "prot: no such setting (did you mean port?)"),
        ("max_context", "max_context: no such setting (did you mean max_contexts?)"),
        ("xyzzy", "xyzzy: no such setting"),
        ("x" * 10_000, "x" * 10_000 + ": no such setting"),
    ],
)
def test_error_for_unknown_setting_in_file_suggests_nearest(
    name: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text(f'{name} = "a secret"\n')
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    assert str(refused.value) == told


def test_error_for_unknown_settings_in_environment_suggests_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TALKWIRE_PROT", "1")
    monkeypatch.setenv("TALKWIRE_XYZZY", "1")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    told = "TALKWIRE_PROT (did you mean TALKWIRE_PORT?), TALKWIRE_XYZZY"
    assert str(refused.value) == f"unknown settings in the environment: {told}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70_000),
        ("max_segment_chars", 1),
        ("log_level", "loud"),
        ("slow_consumer_s", 0),
        ("slow_consumer_s", "inf"),
        ("drain_s", "inf"),
        ("drain_s", "1e9"),
        ("max_session_s", "nan"),
        ("default_lead_ms", "700000000"),
        ("max_lead_ms", 10**30),
        ("network_guard_ms", 700_000_000),
        ("voices_dir", ""),
        ("tls_certificate", ""),
        ("api_keys_file", ""),
        ("asr_model", ""),
        ("host", ""),
        ("admin_host", ""),
        ("model", ""),
        ("allowed_origins", "https://*.example.org"),
        ("allowed_hosts", "exa*mple"),
        ("allowed_hosts", "*.*.example.org"),
        ("allowed_hosts", "*."),
        ("allowed_hosts", "*.:8000"),
        ("codec_device", "gpu"),
        ("talker_attention_backend", "flash attention"),
        ("talker_frame_slots", 1000),
        ("talker_graph_positions", 0),
        ("talker_gpu_memory_utilization", 1.5),
        ("talker_tensor_parallel_size", 0),
    ],
)
def test_error_names_setting_with_invalid_value(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings(None, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("port", "80 00", "port: .* integer.*, not '80 00'"),
        ("codec_workers", "0", "codec_workers: auto, or a number from 1 to 64, not '0'"),
        ("codec_workers", "many", "codec_workers: auto, or a number from 1 to 64, not 'many'"),
        ("codec_workers", "9" * 99, "codec_workers: auto, or a number from 1 to 64, not '99"),
        ("codec_max_batch", "100", "codec_max_batch: .* equal to 64, not '100'"),
        ("log_level", "loud", "log_level: .*'debug', 'info', .*, not 'loud'"),
        ("tracing", "maybe", "tracing: .* boolean.*, not 'maybe'"),
        ("voice_aliases", "[1]", r"voice_aliases: .* dictionary, not \[1\]"),
    ],
)
def test_error_shows_value_and_what_is_allowed(
    name: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=told):
        load_settings(None, **{name: value})
    file = tmp_path / "talkwire.toml"
    file.write_text(f'{name} = "{value}"')
    with pytest.raises(SettingsError, match=told):
        load_settings(file)
    monkeypatch.setenv(f"TALKWIRE_{name.upper()}", value)
    with pytest.raises(SettingsError, match=told):
        load_settings()


@pytest.mark.parametrize("name", ["api_key", "api_keys_file", "token_secret_file", "tls_key"])
def test_error_shows_no_secret_given_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text(f'{name} = ["sk-sesame"]')
    with pytest.raises(SettingsError, match=name) as refused:
        load_settings(file)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("name", ["port", "admin_port", "max_contexts", "drain_s", "max_lead_ms"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_flag_is_refused_where_number_is_needed(name: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text(f"{name} = {value}")
    with pytest.raises(SettingsError, match=f"{name}: .* not {value}"):
        load_settings(file)


def test_flag_settings_accept_flags(tmp_path: Path) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text("tracing = true\nmetrics_public = false\ncodec_spare = true")
    settings = load_settings(file)
    assert (settings.tracing, settings.metrics_public, settings.codec_spare) == (True, False, True)


def test_deeply_nested_settings_are_refused(tmp_path: Path) -> None:
    """Their parsers are recursive."""
    with pytest.raises(SettingsError, match="voice_aliases: not a JSON object"):
        load_settings(voice_aliases="[" * 100_000)
    file = tmp_path / "talkwire.toml"
    file.write_text("voice_aliases = " + "[" * 100_000)
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(file)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_settings_file_must_be_utf_8(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text('served_model_name = "Größe"', encoding=encoding)
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(file)


def test_allowed_hosts_and_origins_accept_wildcards() -> None:
    settings = load_settings(allowed_hosts="*.example.org, *", allowed_origins="*")
    assert settings.allowed_hosts == ("*.example.org", "*")
    assert settings.allowed_origins == ("*",)


def test_model_name_is_found_for_relative_and_slashed_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "voice").mkdir()
    monkeypatch.chdir(tmp_path / "voice")
    assert [load_settings(model=m).model_name for m in (".", "org/a/", "x")] == ["voice", "a", "x"]


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8000"),
        ({"host": "10.1.2.3"}, "http://10.1.2.3:8000"),
        ({"host": "::1"}, "http://[::1]:8000"),
        ({"tls_certificate": "c.pem"}, "https://127.0.0.1:8000"),
    ],
)
def test_start_hint_names_url_of_server(settings: dict[str, Any], place: str) -> None:
    assert _place(load_settings(**settings), 8000) == place


def test_documented_file_of_settings_is_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "talkwire.toml"
    file.write_text(example)
    settings = load_settings(file)
    assert settings.voice_aliases
    assert settings.api_keys_file == Path("/etc/talkwire/keys.json")


def test_data_parallelism_is_refused_with_inprocess_engine() -> None:
    with pytest.raises(SettingsError, match="talker_data_parallel_size"):
        load_settings(talker_engine="inprocess", talker_data_parallel_size=2)
    assert load_settings(talker_data_parallel_size=2).talker_engine == "auto"
    with pytest.raises(SettingsError, match="talker_distributed_executor"):
        load_settings(talker_engine="inprocess", talker_distributed_executor="ray")


#: A value for each of the talker's settings, none of them its default.
TALKER = {
    "engine": "async",
    "runner": "v2",
    "threads": 3,
    "max_num_seqs": 5,
    "max_positions": 8192,
    "max_batched_positions": 2048,
    "kv_positions": 65_536,
    "frame_slots": 4096,
    "max_outstanding": 17,
    "hold_rows": 12,
    "max_conversations": 9,
    "dtype": "float16",
    "quantization": "int8",
    "attention_backend": "TRITON_ATTN",
    "kv_cache_dtype": "fp8",
    "prefix_caching": False,
    "compile": "on",
    "graphs": "full",
    "graph_positions": 256,
    "step_kernels": "off",
    "batch_invariant": True,
    "statistics": True,
    "continuity": "on",
    "tensor_parallel_size": 2,
    "data_parallel_size": 4,
    "distributed_executor": "ray",
    "gpu_memory_utilization": 0.5,
}


def test_talker_settings_reach_talker() -> None:
    settings = load_settings(None, **{f"talker_{name}": value for name, value in TALKER.items()})
    told = msgspec.to_builtins(settings.for_talker())
    assert told == TALKER, "every field of the talker's has a setting, and every setting a field"
    assert set(Settings.model_fields) >= {f"talker_{name}" for name in TALKER}
    defaults = msgspec.to_builtins(TalkerSettings())
    assert not [name for name, value in TALKER.items() if value == defaults[name]]
    assert load_settings().for_talker() == TalkerSettings(), "the same defaults"


def test_missing_or_broken_settings_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="missing"):
        load_settings(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("port = [")
    with pytest.raises(SettingsError, match="not TOML"):
        load_settings(broken)


def test_model_name_is_last_part_of_path_unless_set() -> None:
    assert load_settings().model_path == str(EMBEDDED_MODEL)
    assert load_settings().model_name == "embedded"
    assert load_settings(model="org/big-voice").model_name == "big-voice"
    assert load_settings(model="org/big-voice", served_model_name="v").model_name == "v"


def test_openai_model_aliases_accept_list_or_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text('openai_model_aliases = ["a", "b"]\n')
    assert load_settings(file).openai_model_aliases == ("a", "b")
    monkeypatch.setenv("TALKWIRE_OPENAI_MODEL_ALIASES", "tts-1, x,")
    assert load_settings(file).openai_model_aliases == ("tts-1", "x")
    monkeypatch.setenv("TALKWIRE_OPENAI_MODEL_ALIASES", "")
    assert load_settings().openai_model_aliases == ()


def documented_defaults() -> dict[str, str]:
    """The defaults in the page's tables, by setting. Several settings of a row may share one."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", text, re.MULTILINE):
        each = re.findall(r"`(\w+)`", names)
        texts = defaults.split(", ") if len(each) > 1 else [defaults]
        found |= dict(zip(each, texts * len(each) if len(texts) == 1 else texts, strict=True))
    return found


def test_page_lists_every_setting_with_its_default() -> None:
    documented = documented_defaults()
    assert documented.keys() == Settings.model_fields.keys()
    for name, field in Settings.model_fields.items():
        match field.default:
            case None:  # the page says what it stands for
                continue
            case bool(flag):
                expected = str(flag).lower()
            case () | {}:
                expected = "none"
            case tuple(names):
                expected = ", ".join(names)
            case float(number):
                expected = f"{number:g}"
            case other:
                expected = {16 << 20: "16 MiB"}.get(other, str(other))
        assert documented[name] == expected, name


def test_connections_follow_contexts_unless_set() -> None:
    assert [Settings().connections(contexts) for contexts in (0, 16, 256)] == [256, 256, 512]
    assert Settings(max_connections=3).connections(256) == 3


@pytest.mark.parametrize(
    ("chosen", "cores", "has_gpu_build", "expected"),
    [
        ({}, 1, False, 1),
        ({}, 2, False, 1),
        ({}, 3, False, 1),
        ({}, 4, False, 2),
        ({}, 8, False, 4),
        ({}, 64, False, 4),
        ({"talker_threads": 2}, 4, False, 1),
        ({"codec_threads": 2}, 8, False, 3),
        ({}, 16, True, 1),
        ({"codec_device": "cuda:1"}, 16, False, 1),
        ({"codec_device": "cpu"}, 8, True, 4),
        ({"codec_workers": "3"}, 2, False, 3),
        ({"codec_workers": 2}, 1, True, 2),
    ],
)
def test_codec_workers_follow_cores_without_gpu(
    chosen: dict[str, Any], cores: int, has_gpu_build: bool, expected: int
) -> None:
    found = Settings(**chosen).count_codec_workers(cores, has_gpu_build=has_gpu_build)
    assert found == expected
