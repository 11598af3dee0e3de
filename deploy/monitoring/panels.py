"""What the dashboard shows: rows of panels, and each panel's PromQL.

``HERE`` stands for the matchers of the dashboard's variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HERE = 'namespace=~"$namespace",pod=~"$pod"'
_FAULTS = "engine_failed|engine_restarting|codec_failed|internal"
_REFUSALS = "overloaded|too_many_contexts|not_ready|draining"


@dataclass(frozen=True)
class Panel:
    """``queries`` are pairs of PromQL and legend; ``red`` is where a stat turns red."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "heatmap", "table"] = "timeseries"
    width: int = 8
    help: str = ""
    red: float | None = None
    low_is_bad: bool = False


@dataclass(frozen=True)
class Row:
    """A heading, and what lies under it."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", labels: str = "") -> str:
    """Per second over the dashboard's interval, summed."""
    matchers = HERE + ("," + labels if labels else "")
    head = f"sum by ({by}) " if by else "sum"
    return f"{head}(rate({metric}{{{matchers}}}[$__rate_interval]))"


def quantile(q: float, histogram: str, by: str = "") -> str:
    """A quantile of a histogram over the dashboard's interval."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', labels)})"


def quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    """p50, p95 and p99."""
    return tuple((quantile(q, histogram), f"p{round(100 * q)}") for q in (0.5, 0.95, 0.99))


def over(top: str, bottom: str) -> str:
    """A ratio; nothing rather than NaN where there is nothing to divide by."""
    return f"{top} / ({bottom} > 0)"


def total(gauge: str, by: str = "") -> str:
    """A gauge, summed over pods."""
    return f"sum by ({by}) ({gauge}{{{HERE}}})" if by else f"sum({gauge}{{{HERE}}})"


def working(gauge: str, by: str = "") -> str:
    """A gauge, summed over the pods that take work."""
    gauge = f"{gauge}{{{HERE}}} * tts_ready{{{HERE}}}"
    return f"sum by ({by}) ({gauge})" if by else f"sum({gauge})"


def one(query: str, legend: str = "") -> tuple[tuple[str, str], ...]:
    """A panel's only query."""
    return ((query, legend),)


_TTFA = "tts_time_to_first_audio_seconds"
_GAP_FREE = over(rate("tts_contexts_gap_free_total"), rate("tts_underrun_seconds_count"))
_SATURATION = over(working("tts_contexts_active"), working("tts_capacity_contexts"))
_FAULT_RATE = rate("tts_errors_total", labels=f'code=~"{_FAULTS}"')
#: All of them, if they fail before they are contexts.
_FAULT_SHARE = over(_FAULT_RATE, f"{rate('tts_contexts_total')} > 0 or {_FAULT_RATE}")

EXPERIENCE = Row(
    "What users hear",
    (
        Panel("First audio, p95", one(quantile(0.95, _TTFA)), "s", "stat", 6, red=0.5),
        Panel(
            "Spoken without a gap",
            one(_GAP_FREE),
            "percentunit",
            "stat",
            6,
            red=0.99,
            low_is_bad=True,
        ),
        Panel("The service's own faults", one(_FAULT_SHARE), "percentunit", "stat", 6, red=0.02),
        Panel("Full", one(_SATURATION), "percentunit", "stat", 6, red=0.85),
        Panel(
            "Time to first audio",
            quantiles(_TTFA),
            "s",
            width=12,
            help="From the first complete utterance to its first audible sample sent.",
        ),
        Panel(
            "Time to first audio, how many",
            one(f"sum by (le) (increase({_TTFA}_bucket{{{HERE}}}[$__rate_interval]))", "{{le}}"),
            "s",
            "heatmap",
            12,
        ),
        Panel(
            "Gap-free share",
            one(
                over(
                    rate("tts_contexts_gap_free_total", "protocol"),
                    rate("tts_underrun_seconds_count", "protocol"),
                ),
                "{{protocol}}",
            ),
            "percentunit",
            help="Contexts whose listener never ran dry, by the playback model. Level: 99 %.",
        ),
        Panel(
            "Underruns",
            (
                (rate("tts_underruns_total"), "times per second"),
                (
                    over(rate("tts_underrun_seconds_sum"), rate("tts_audio_seconds_total")),
                    "silence per second of audio",
                ),
            ),
        ),
        Panel(
            "Errors by code", one(rate("tts_errors_total", "code") + " > 0", "{{code}}"), "reqps"
        ),
        Panel(
            "Contexts by outcome",
            one(rate("tts_contexts_total", "outcome"), "{{outcome}}"),
            "reqps",
        ),
        Panel(
            "Utterances cut",
            (
                *one(rate("tts_utterances_cut_total", "cause"), "{{cause}}"),
                *one(rate("tts_utterances_ended_by_silence_total"), "silence"),
            ),
            "reqps",
            help="text, silence: the talker went on after the end of its text, and was stopped.",
        ),
        Panel("Silence before the first word", quantiles("tts_leading_silence_seconds"), "s"),
        Panel("Cancel to answer", quantiles("tts_cancel_ack_seconds"), "s"),
        Panel(
            "Between chunks",
            quantiles("tts_inter_chunk_gap_seconds"),
            "s",
            help="Chunks grow, so this does too; judge gaps by underruns.",
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        Panel(
            "Contexts",
            (
                (total("tts_contexts_active", "pod"), "{{pod}}"),
                (working("tts_capacity_contexts"), "capacity of all"),
            ),
        ),
        Panel(
            "Connections",
            (
                (total("tts_connections_active"), "open"),
                (rate("tts_connections_total"), "new per second"),
            ),
        ),
        Panel("WebSockets ended", one(rate("tts_ws_close_total", "code"), "{{code}}"), "reqps"),
        Panel(
            "Audio",
            (
                (rate("tts_audio_seconds_total"), "seconds per second"),
                (rate("tts_wasted_audio_seconds_total", "stage"), "wasted, {{stage}}"),
            ),
            help="Seconds of audio per second: as many voices speak at once.",
        ),
        Panel("Text", one(rate("tts_characters_total"), "characters per second")),
        Panel("Wait for the talker", quantiles("tts_queue_seconds"), "s"),
        Panel(
            "Ready pods",
            ((total("tts_ready"), "ready"), (total("tts_draining"), "shutting down")),
        ),
        Panel(
            "Event loop's lag, p99",
            one(quantile(0.99, "tts_event_loop_lag_seconds", "pod"), "{{pod}}"),
            "s",
        ),
    ),
)

_NO_ROOM = rate("tts_errors_total", labels='code="overloaded"')

ADMISSION = Row(
    "Admission",
    (
        Panel(
            "Room by pod",
            (
                (working("tts_capacity_contexts", "pod"), "{{pod}} admits"),
                (total("tts_contexts_active", "pod"), "{{pod}} has"),
            ),
            width=12,
            help="What a pod admits follows its measured pace, up to max_contexts. It fades to "
            "what was measured at the start while nobody speaks. 0: the pod is not ready.",
        ),
        Panel(
            "What limits a pod",
            one(f"min by (limit) (tts_capacity_limit_contexts{{{HERE}}})", "{{limit}}"),
            width=24,
            help="Contexts that the pod with the least could have open, by each limit. The lowest "
            "curve binds.",
        ),
        Panel(
            "Full, by pod",
            one(
                over(total("tts_contexts_active", "pod"), working("tts_capacity_contexts", "pod")),
                "{{pod}}",
            ),
            "percentunit",
            width=12,
            help="One pod full and others idle: load is badly spread.",
        ),
        Panel(
            "Refusals",
            one(rate("tts_errors_total", "code", f'code=~"{_REFUSALS}"'), "{{code}}"),
            "reqps",
            width=12,
        ),
        Panel(
            "Turned away for want of room",
            one(over(_NO_ROOM, f"{rate('tts_contexts_total')} + {_NO_ROOM}")),
            "percentunit",
            width=12,
            help="Of all that asked: contexts refused as overloaded, connections included.",
        ),
    ),
)

ENGINES = Row(
    "Engines",
    (
        Panel(
            "Real-time factor",
            quantiles("tts_real_time_factor"),
            help="Talker time over audio time. Over 1 there must be gaps.",
        ),
        Panel(
            "A row's time over its audio",
            one(over(f"tts_pace_row_seconds{{{HERE}}}", f"tts_frame_seconds{{{HERE}}}"), "{{pod}}"),
            help="What the chunk schedule reckons with.",
        ),
        Panel(
            "What the schedule allows for",
            (
                (f"tts_pace_burst_seconds{{{HERE}}}", "late rows, {{pod}}"),
                (f"tts_pace_codec_queue_seconds{{{HERE}}}", "codec's queue, {{pod}}"),
                (f"tts_pace_decode_fixed_seconds{{{HERE}}}", "per window, {{pod}}"),
                (f"tts_pace_decode_frame_seconds{{{HERE}}}", "per frame, {{pod}}"),
            ),
            "s",
        ),
        Panel("Utterances in the talker", one(total("tts_talker_requests", "state"), "{{state}}")),
        Panel(
            "Utterances that the talker gave up",
            one(
                "sum by (reason) "
                f"(increase(tts_talker_failures_total{{{HERE}}}[$__rate_interval]))",
                "{{reason}}",
            ),
        ),
        Panel(
            "Windows in the codec",
            (
                (total("tts_codec_windows", "pod"), "{{pod}}"),
                (total("tts_codec_workers", "pod"), "workers of {{pod}}"),
            ),
        ),
        Panel(
            "Codec's batch",
            (
                (
                    over(rate("tts_codec_batch_size_sum"), rate("tts_codec_batch_size_count")),
                    "mean",
                ),
                (quantile(0.95, "tts_codec_batch_size"), "p95"),
            ),
        ),
        Panel("Codec: decoding", quantiles("tts_codec_decode_seconds"), "s"),
        Panel("Codec: waiting", quantiles("tts_codec_queue_seconds"), "s"),
        Panel(
            "Restarts",
            (
                (
                    "sum by (pod, worker) "
                    f"(increase(tts_worker_restarts_total{{{HERE}}}[$__rate_interval]))",
                    "{{worker}} of {{pod}}",
                ),
                (
                    f"changes(process_start_time_seconds{{{HERE}}}[$__rate_interval])",
                    "all of {{pod}}",
                ),
                (
                    f"increase(tts_codec_takeovers_total{{{HERE}}}[$__rate_interval])",
                    "a spare codec's turn in {{pod}}",
                ),
            ),
        ),
        Panel("Workers up", one(total("tts_worker_up", "worker"), "{{worker}}")),
        Panel(
            "Gateway's memory", one(f"process_resident_memory_bytes{{{HERE}}}", "{{pod}}"), "bytes"
        ),
        Panel(
            "Held while engines start",
            one(
                f"sum by (result) (increase(tts_clients_held_total{{{HERE}}}[$__rate_interval]))",
                "{{result}}",
            ),
        ),
        Panel(
            "Cut off by a drain",
            one(
                "sum by (pod) "
                f"(increase(tts_contexts_cut_by_drain_total{{{HERE}}}[$__rate_interval]))",
                "{{pod}}",
            ),
            help="Contexts that did not end within drain_s.",
        ),
        Panel(
            "Log lines dropped",
            one(
                f"sum by (pod) (increase(tts_log_lines_dropped_total{{{HERE}}}[$__rate_interval]))",
                "{{pod}}",
            ),
            help="Nobody reads the log, or its disk is full.",
        ),
        Panel(
            "TLS certificate's time left",
            one(f"tts_tls_certificate_expiry_timestamp_seconds{{{HERE}}} - time()", "{{pod}}"),
            "s",
        ),
        Panel("Gateway's tasks", one(f"tts_event_loop_tasks{{{HERE}}}", "{{pod}}")),
        Panel("What is running", one(f'tts_build_info{{{HERE},model=~"$model"}}'), kind="table"),
    ),
)

TENANTS = Row(
    "Keys and tenants",
    (
        Panel(
            "API keys",
            (
                (f"min(tts_api_keys{{{HERE}}})", "valid"),
                (f"min(tts_api_keys_current{{{HERE}}})", "file readable"),
            ),
            help="The fewest of any pod. The second falls to 0 where a pod cannot read its file.",
        ),
        Panel("Contexts", one(total("tts_tenant_contexts_active", "tenant"), "{{tenant}}")),
        Panel("Connections", one(total("tts_tenant_connections_active", "tenant"), "{{tenant}}")),
        Panel(
            "Characters a second", one(rate("tts_tenant_characters_total", "tenant"), "{{tenant}}")
        ),
        Panel(
            "Refused by their limits",
            one(rate("tts_tenant_refusals_total", "tenant"), "{{tenant}}"),
        ),
    ),
)

ROWS = (EXPERIENCE, LOAD, ADMISSION, ENGINES, TENANTS)
